// The canvas of one answer: which rows a forward runs, what each row sees, and what its scores
// commit. Everything follows the contract of manifest.json, whose `text` explains it.
#pragma once

#include <algorithm>

#include "json.h"

// A sampler of the contract, with the settings of a run.
struct Sampler {
  std::string window, rule, attention, priority, schedule;
  int gen_length, block_length, steps_per_block, n_blocks;
  int model_block = 0;  // of attention that is causal between blocks; 0 for none
  double threshold = 0;
  bool in_chunks, strict, quota_at_least, eos_early_stop, blocks_from_prompt, cuts_last_block, starts_alone;
  int shift, multiple, mask_id, eos_id;
  std::vector<int> stop_ids, forbidden_ids;

  Sampler(const Json& contract, const std::string& name, int length, double bound) {
    const Json& samplers = contract["samplers"];
    std::string names;
    for (const auto& entry : samplers.object()) names += (names.empty() ? "" : ", ") + entry.first;
    require(samplers.has(name), "sampler is " + name + "; allowed: " + names);
    const Json& own = samplers[name];
    window = own["window"].text();
    rule = own["rule"].text();
    attention = own["attention"].text();
    priority = own["priority"].text();
    schedule = own["schedule"].text();
    if (own.has("threshold")) threshold = bound > 0 ? bound : own["threshold"].number();
    if (own["confidence_dtype"].text() == "float32") threshold = float(threshold);
    in_chunks = own["head"].text() == "head_chunk";
    require(bound <= 0 || (own.has("threshold") && bound <= 1),
            "threshold is set; allowed: above 0 and up to 1, with a sampler that has a threshold");
    block_length = int(own["block_length"].integer(1, 1 << 20));
    gen_length = length > 0 ? length : int(own["gen_length"].integer(1, 1 << 20));
    cuts_last_block = own["last_block"].text() == "cut";
    require(cuts_last_block || gen_length % block_length == 0,
            "gen-length is " + std::to_string(gen_length) + "; allowed: multiples of " + std::to_string(block_length));
    n_blocks = (gen_length + block_length - 1) / block_length;
    const int steps = own.has("steps") ? int(own["steps"].integer(1, 1 << 20)) : gen_length;
    steps_per_block = (steps + n_blocks - 1) / n_blocks;
    if (contract.has("model_block")) model_block = int(contract["model_block"].integer(1, 1 << 20));
    strict = own["strict_threshold"].flag();
    quota_at_least = own["forced_progress"].text() == "quota";
    eos_early_stop = own["eos_early_stop"].flag();
    blocks_from_prompt = own["block_origin"].text() == "prompt";
    starts_alone = own["starts_blocks_alone"].flag();
    shift = int(contract["shift"].integer(0, 1));
    multiple = int(contract["canvas_multiple"].integer(1, 1 << 20));
    mask_id = int(contract["mask_id"].integer(0, 1 << 24));
    eos_id = contract.has("eos_id") ? int(contract["eos_id"].integer(0, 1 << 24)) : -1;
    stop_ids = contract["stop_ids"].integers();
    forbidden_ids = own["forbidden_ids"].integers();
    const auto known = [](const std::string& value, const std::string& values) {
      require((" " + values + " ").find(" " + value + " ") != std::string::npos,
              "the contract has " + value + "; allowed in this program: " + values);
    };
    known(window, "none prefix dual blockwise");
    known(rule, "quota threshold");
    known(attention, "all sampler_block model_block filled finished");
    known(priority, "low_confidence entropy margin sequential");
    known(schedule, "even noise linear");
  }
  bool caches() const { return window != "none"; }
};

struct Scores {
  std::vector<int> token;
  std::vector<double> confidence, entropy, margin;  // the last two only of a head in chunks
};

inline int floor_divide(int a, int b) { return a / b - (a % b < 0); }

class Canvas {
 public:
  const Sampler& sampler;
  std::vector<int> tokens;
  int prompt, end, origin, length;  // of the prompt; one past the last position; start of block 0
  int block = 0, block_step = 0, n_cached = 0, forwards = 0;
  bool done = false;

  Canvas(const Sampler& settings, const std::vector<int>& ids) : sampler(settings), prompt(int(ids.size())) {
    require(prompt > 0, "the prompt is empty; allowed: 1 token or more");
    require(std::find(ids.begin(), ids.end(), sampler.mask_id) == ids.end(),
            "the prompt contains the mask token; allowed: other tokens");
    end = prompt + sampler.gen_length;
    origin = prompt;
    if (sampler.model_block) {
      const int first = sampler.blocks_from_prompt ? prompt : 0;
      if (!sampler.cuts_last_block)  // rounded up to a whole block
        end = first - floor_divide(first - end, sampler.model_block) * sampler.model_block;
      origin = prompt - ((prompt - first) % sampler.block_length);
    }
    length = (end + sampler.multiple - 1) / sampler.multiple * sampler.multiple;
    tokens = ids;
    tokens.resize(size_t(end), sampler.mask_id);
    masked_.assign(size_t(end), false);
    std::fill(masked_.begin() + prompt, masked_.end(), true);
    block = (prompt - origin) / sampler.block_length;
    block_masks_ = masks_left();
  }

  // The rows of the next forward are the positions from `start` to `stop`.
  struct Plan {
    int start, stop, n_cached;
    std::vector<int> at, row;  // positions to score, and the rows that score them
    int rows() const { return stop - start; }
  };

  Plan plan() const {
    int start = 0, stop = end;
    if (sampler.window == "prefix" || sampler.window == "dual") {
      if (block_step > 0) start = block_start();
      if (block_step > 0 && sampler.window == "dual") stop = block_stop();
    } else if (sampler.window == "blockwise") {
      start = n_cached, stop = block_stop();
    }
    if (sampler.model_block || sampler.starts_alone) {  // whole blocks of the model
      const int block_size = sampler.model_block ? sampler.model_block : 1;
      const int window_stop = stop, first = block_floor(block_start());
      stop = std::min(block_floor(window_stop + block_size - 1), end);
      if (sampler.starts_alone && masked_[size_t(std::min(first, end - 1))] && start < first) stop = first;
    }
    Plan plan{std::max(start - sampler.shift, 0), stop, n_cached, {}, {}};
    const int last = sampler.starts_alone ? std::min(block_stop(), stop + 1) : block_stop();
    for (int position = std::max(block_start(), 0); position < last; ++position) {
      if (!masked_[size_t(position)]) continue;
      int shift = sampler.shift;
      if (sampler.attention == "finished") shift = position > plan.start && position <= block_start();
      plan.at.push_back(position);
      plan.row.push_back(std::min(std::max(position - shift - plan.start, 0), plan.rows() - 1));
    }
    return plan;
  }

  // The order of attention: a row sees positions of its own order and of lower ones.
  int order(int position) const {
    if (sampler.attention == "sampler_block")
      return std::max(floor_divide(position - origin, sampler.block_length), -1);
    if (sampler.attention == "model_block") return floor_divide(position - first_block(), sampler.model_block);
    if (sampler.attention == "filled") return position + (masked_[size_t(position)] ? 1 << 24 : 0);
    if (sampler.attention == "finished") return std::min(position, block_start());
    return 0;
  }

  // Commits tokens by the scores of the planned positions, and goes on to the next step.
  void decide(const Plan& plan, const Scores& scores) {
    ++forwards;
    if (sampler.window == "blockwise") {
      n_cached = block_start();
      if (sampler.model_block) n_cached = block_floor(n_cached);
    } else if (sampler.caches()) {
      n_cached = end;
    }
    const int quota = this->quota(), stop = block_start() + sampler.block_length;
    std::vector<size_t> ranked;
    for (size_t i = 0; i < plan.at.size(); ++i)
      if (plan.at[i] < stop) ranked.push_back(i);
    const bool by_entropy = sampler.priority == "entropy";
    const bool by_margin = sampler.priority == "margin";
    const auto& priority = by_entropy ? scores.entropy : by_margin ? scores.margin : scores.confidence;
    if (sampler.priority != "sequential")
      std::stable_sort(ranked.begin(), ranked.end(), [&](size_t a, size_t b) {
        return by_entropy ? priority[a] < priority[b] : priority[a] > priority[b];
      });
    const int least = sampler.rule == "quota" ? quota : sampler.quota_at_least ? std::max(quota, 1) : 1;
    for (size_t rank = 0; rank < ranked.size(); ++rank) {
      const size_t i = ranked[rank];
      const double confidence = scores.confidence[i];
      require(std::isfinite(confidence),
              "the model's scores are NaN or infinite at position " + std::to_string(plan.at[i]));
      const bool reaches = sampler.strict ? confidence > sampler.threshold : confidence >= sampler.threshold;
      const bool commits = int(rank) < least || (sampler.rule == "threshold" && reaches);
      if (commits && scores.token[i] != sampler.mask_id) put(plan.at[i], scores.token[i]);
    }
    advance();
    if (sampler.eos_early_stop) stop_at_eos();
  }

  std::vector<int> answer() const {
    return {tokens.begin() + prompt, tokens.begin() + prompt + sampler.gen_length};
  }

 private:
  std::vector<bool> masked_;
  int block_masks_ = 0;

  int block_start() const { return origin + block * sampler.block_length; }
  int block_stop() const { return std::min(block_start() + sampler.block_length, end); }
  int first_block() const { return sampler.blocks_from_prompt ? origin : 0; }
  int block_floor(int position) const {
    const int size = sampler.model_block ? sampler.model_block : 1;
    return std::max(first_block() + floor_divide(position - first_block(), size) * size, 0);
  }
  int masks_left() const {
    return int(std::count(masked_.begin() + block_start(), masked_.begin() + block_stop(), true));
  }
  void put(int position, int token) { tokens[size_t(position)] = token, masked_[size_t(position)] = false; }

  int quota() const {
    const int left = masks_left(), steps = sampler.steps_per_block;
    if (sampler.schedule == "even") return block_masks_ / steps + (block_step < block_masks_ % steps);
    if (sampler.schedule == "linear") {
      const float share = float(1.0 - double(std::min(block_step, steps - 1) + 1) / steps);
      return left - int(float(block_masks_) * share);
    }
    if (block_step >= steps - 1) return left;
    const auto level = [&](int step) { return 1 - 0.999f * (float(step) / float(steps)); };
    return int(float(left) * (1 - level(block_step + 1) / level(block_step)));
  }
  void advance() {
    ++block_step;
    const int most = sampler.rule == "quota" ? sampler.steps_per_block : sampler.block_length;
    if (masks_left() > 0 && block_step < most) return;
    const auto later = std::find(masked_.begin() + block_stop(), masked_.end(), true);
    done = later == masked_.end();
    if (done) return;
    block = (int(later - masked_.begin()) - origin) / sampler.block_length;
    block_step = 0;
    block_masks_ = masks_left();
  }
  void stop_at_eos() {
    for (int position = prompt; position < end && !masked_[size_t(position)]; ++position) {
      const int token = tokens[size_t(position)];
      const auto& stops = sampler.stop_ids;
      if (token != sampler.eos_id && std::find(stops.begin(), stops.end(), token) == stops.end()) continue;
      for (int i = position; i < end; ++i)
        if (masked_[size_t(i)]) put(i, sampler.eos_id);
      done = true;
      return;
    }
  }
};
