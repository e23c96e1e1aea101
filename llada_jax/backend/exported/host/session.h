// An exported folder: its files, and the forwards and scores of canvases.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "canvas.h"
#include "litert.h"
#include "sha256.h"

// Milliseconds of each signature's runs, by file and signature.
struct Timing {
  std::string graph;
  int rows, cache, layers;
  std::vector<double> ms;
};
using Timings = std::map<std::pair<std::string, std::string>, Timing>;

class Session {
 public:
  Timings timings;

  Session(const LiteRt& litert, const std::string& folder, const Json& manifest, const std::string& soc,
          const std::string& packed)
      : model_(manifest["model"]), rows_(sizes(manifest["settings"]["rows"])),
        caches_(sizes(manifest["settings"]["caches"])) {
    width_ = size("width"), vocabulary_ = size("vocab_size"), heads_ = size("n_kv_heads");
    head_size_ = size("head_dim"), half_ = size("rotary_dims") / 2;
    const auto open = [&](const Json& file, int accelerators) {
      // LiteRT does not check that packed weights belong to the file, so their name has its hash.
      const std::string name = file["name"].text(), hash = file["sha256"].text();
      const std::string cache = packed.empty() ? "" : packed + "/" + name + "." + hash + ".xnnpack";
      return std::make_unique<Graph>(litert, folder + "/" + name, cache, accelerators);
    };
    const auto add = [&](const Json& file, const Json& layers, int accelerators) {
      Shard shard{file["name"].text(), {}, open(file, accelerators)};
      const int64_t stop = layers["stop"].integer(1, 4096);
      for (int64_t layer = layers["start"].integer(0, stop - 1); layer < stop; ++layer)
        for (const char* kind : {"keys_", "values_"}) shard.caches.push_back(kind + std::to_string(layer));
      shards_.push_back(std::move(shard));
    };
    if (soc.empty())
      for (const Json& shard : manifest["shards"].list()) add(shard["file"], shard, 1);
    for (const Json& context : manifest["contexts"].list())
      for (const Json& file : manifest["others"].list())
        if (context["soc"].text() == soc && file["name"].text() == context["compiled"].text())
          add(file, context, 4 | 1);
    require(!shards_.empty(), "the folder has no graphs for " + (soc.empty() ? "the CPU" : soc));
    chunk_ = int(manifest["head_chunk"].integer(1, 1 << 24));
    head_name_ = manifest["head"]["name"].text();
    head_ = open(manifest["head"], 1);
    embedding_dtype_ = manifest["embedding_dtype"].text();
    const size_t bytes = embedding_dtype_ == "float32" ? 4 : 2;
    embedding_ = load(folder, manifest["embedding"]["name"].text(), size_t(vocabulary_) * width_ * bytes);
    positions_ = int(manifest["contract"]["positions"].integer(1, 1 << 24));
    rotation_ = load(folder, manifest["contract"]["rotation"].text(), size_t(8) * positions_ * half_);
  }

  // Begins a canvas: its cache is empty.
  void begin(const Sampler& sampler, const Canvas& canvas) {
    const int multiple = sampler.multiple, longest = size("max_length");
    const int room = std::min(positions_, sampler.caches() ? caches_.back() / multiple * multiple : positions_);
    require(canvas.end <= room && canvas.prompt + sampler.gen_length <= longest,
            "the prompt has " + std::to_string(canvas.prompt) + " tokens, and " + std::to_string(sampler.gen_length) +
                " follow; allowed: up to " + std::to_string(std::min(room, longest)) + " together");
    for (const int id : canvas.tokens)
      require(id < vocabulary_ || id == sampler.mask_id,
              "the prompt has id " + std::to_string(id) + "; allowed: up to " + std::to_string(vocabulary_ - 1));
    cache_ = *std::lower_bound(caches_.begin(), caches_.end(), sampler.caches() ? canvas.length : 0);
    caches_of_.clear();
    pending_start_ = pending_stop_ = 0;
    penalty_ = nullptr;
  }

  // Runs the planned rows, and scores the planned positions.
  Scores step(const Canvas& canvas, const Canvas::Plan& plan) {
    const int bucket = smallest(plan.rows(), canvas.prompt);
    const std::string signature = "rows" + std::to_string(bucket) + "_cache" + std::to_string(cache_);
    if (cache_ > 0 && caches_of_.empty())
      for (const Shard& shard : shards_)
        for (const std::string& name : shard.caches) caches_of_[name] = shard.graph->input(signature, name);
    if (canvas.sampler.caches()) flush(plan);
    Buffers inputs = body_inputs(canvas, plan, bucket, signature);
    for (Shard& shard : shards_) {
      if (cache_ > 0)
        for (const std::string& name : shard.caches) inputs[name] = caches_of_[name];
      const Timing kind{"layers", bucket, cache_, int(shard.caches.size() / 2), {}};
      const Buffers& outputs = timed(*shard.graph, shard.name, signature, inputs, kind);
      for (const auto& [name, buffer] : outputs) fresh_[name] = buffer;
      get(outputs, "hidden");
      inputs["hidden"] = fresh_["hidden"];
    }
    pending_start_ = plan.start, pending_stop_ = plan.stop, bucket_ = bucket;
    return score(canvas.sampler, inputs["hidden"], plan.row);
  }

 private:
  struct Shard {
    std::string name;
    std::vector<std::string> caches;  // names of the cache's inputs
    std::unique_ptr<Graph> graph;
  };
  const Json& model_;
  std::vector<int> rows_, caches_;
  int width_, vocabulary_, heads_, head_size_, half_, positions_, chunk_;
  std::vector<Shard> shards_;
  std::string head_name_, embedding_dtype_;
  std::unique_ptr<Graph> head_;
  const uint8_t *embedding_, *rotation_;
  int cache_ = 0, bucket_ = 0, pending_start_ = 0, pending_stop_ = 0;  // the last three of the last forward
  Buffers caches_of_, fresh_;  // by input, and outputs of the last forward
  std::map<std::string, Buffers> inputs_;  // by signature, then name
  SharedBuffer penalty_;

  int size(const char* name) const { return int(model_[name].integer(1, 1 << 24)); }
  static std::vector<int> sizes(const Json& list) {
    std::vector<int> out = list.integers();
    require(!out.empty() && std::is_sorted(out.begin(), out.end()), "settings has no ascending sizes");
    return out;
  }
  static const uint8_t* load(const std::string& folder, const std::string& name, size_t bytes) {
    const std::string path = folder + "/" + name;
    const int file = open(path.c_str(), O_RDONLY);
    struct stat status {};
    require(file >= 0 && fstat(file, &status) == 0 && size_t(status.st_size) == bytes,
            path + " is missing or has another size; allowed: " + std::to_string(bytes) + " bytes");
    void* memory = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    require(memory != MAP_FAILED, path + " cannot be mapped");
    return static_cast<const uint8_t*>(memory);
  }

  int smallest(int rows, int prompt) const {
    const auto found = std::lower_bound(rows_.begin(), rows_.end(), rows);
    require(found != rows_.end(), "the prompt has " + std::to_string(prompt) + " tokens, and a forward " +
                                      std::to_string(rows) + " rows; allowed: up to " +
                                      std::to_string(rows_.back()) + " rows, set at export");
    return *found;
  }

  const Buffers& timed(Graph& graph, const std::string& file, const std::string& signature,
                                                   const Buffers& inputs, const Timing& kind) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point began = Clock::now();
    const auto& outputs = graph.run(signature, inputs);
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
    timings.emplace(std::make_pair(file, signature), kind).first->second.ms.push_back(ms);
    return outputs;
  }

  void embed(int token, float* out) const {
    for (int i = 0; i < width_; ++i) {
      const size_t at = size_t(token) * width_ + i;
      uint32_t bits = 0;
      if (embedding_dtype_ == "float32") {
        std::memcpy(&bits, embedding_ + 4 * at, 4);
      } else {
        uint16_t half = 0;
        std::memcpy(&half, embedding_ + 2 * at, 2);
        bits = uint32_t(half) << 16;
        if (embedding_dtype_ == "float16") {
          const float scaled = std::ldexp(float((half & 0x3FF) | (half & 0x7C00 ? 0x400 : 0)),
                                          std::max(half >> 10 & 31, 1) - 25);
          out[i] = half >> 15 ? -scaled : scaled;
          continue;
        }
      }
      std::memcpy(out + i, &bits, 4);
    }
  }

  Buffers body_inputs(const Canvas& canvas, const Canvas::Plan& plan, int bucket,
                                                  const std::string& signature) {
    auto& inputs = inputs_[signature];
    if (inputs.empty())
      for (const char* name : {"hidden", "cos", "sin", "bias"}) inputs[name] = shards_[0].graph->input(signature, name);
    const int rows = plan.rows();
    const size_t columns = size_t(cache_) + size_t(bucket);
    inputs["hidden"]->write(size_t(bucket) * width_, [&](float* out) {
      for (int row = 0; row < rows; ++row) {
        const int token = canvas.tokens[size_t(plan.start + row)];
        // The mask of an autoregressive model is no token; nothing reads such a row.
        if (token < vocabulary_) embed(token, out + size_t(row) * width_);
        else std::fill_n(out + size_t(row) * width_, width_, 0.0f);
      }
      std::fill(out + size_t(rows) * width_, out + size_t(bucket) * width_, 0.0f);
    });
    for (const char* name : {"cos", "sin"})
      inputs[name]->write(size_t(bucket) * half_, [&](float* out) {
        const size_t first = (name[0] == 's' ? size_t(positions_) : 0) + size_t(plan.start);
        std::memcpy(out, rotation_ + 4 * first * half_, 4 * size_t(rows) * half_);
        std::fill(out + size_t(rows) * half_, out + size_t(bucket) * half_, 0.0f);
      });
    inputs["bias"]->write(size_t(bucket) * columns, [&](float* out) {
      std::fill_n(out, size_t(bucket) * columns, -3e4f);
      std::vector<int> orders(size_t(std::max(plan.n_cached, plan.stop)));
      for (size_t i = 0; i < orders.size(); ++i) orders[i] = canvas.order(int(i));
      for (int row = 0; row < rows; ++row) {
        float* line = out + size_t(row) * columns;
        const int order = orders[size_t(plan.start + row)];
        for (int at = 0; at < plan.n_cached; ++at)
          if (orders[size_t(at)] <= order && (at < plan.start || at >= plan.stop)) line[at] = 0;
        for (int other = 0; other < rows; ++other)
          if (orders[size_t(plan.start + other)] <= order) line[cache_ + other] = 0;
      }
    });
    return inputs;
  }

  // Writes keys and values of the last forward to the cache, except of positions that are rows again.
  void flush(const Canvas::Plan& plan) {
    const auto copy = [&](int start, int stop) {
      if (start >= stop) return;
      for (const auto& [name, cache] : caches_of_) {
        const Buffer& rows = get(fresh_, "new_" + name);
        const size_t row = size_t(start - pending_start_), size = size_t(heads_) * head_size_;
        cache->write(size * cache_, [&](float* to) {
          rows.read(size * bucket_, [&](const float* from) {
            for (size_t head = 0; head < size_t(heads_); ++head)
              std::memcpy(to + (head * cache_ + start) * head_size_, from + (head * bucket_ + row) * head_size_,
                          4 * size_t(stop - start) * head_size_);
          });
        });
      }
    };
    copy(pending_start_, std::min(pending_stop_, plan.start));
    copy(std::max(pending_start_, plan.stop), pending_stop_);
    pending_start_ = pending_stop_ = 0;
  }

  Scores score(const Sampler& sampler, const SharedBuffer& hidden, const std::vector<int>& rows) {
    Scores out;
    for (size_t start = 0; start < rows.size(); start += size_t(rows_.back())) {
      const size_t count = std::min(rows.size() - start, size_t(rows_.back()));
      const int bucket = *std::lower_bound(rows_.begin(), rows_.end(), int(count));
      const std::string signature = "rows" + std::to_string(bucket);
      auto& inputs = inputs_[signature];
      if (inputs.empty()) inputs["hidden"] = head_->input(signature, "hidden");
      inputs["hidden"]->write(size_t(bucket) * width_, [&](float* to) {
        hidden->read(size_t(bucket_) * width_, [&](const float* from) {
          for (size_t i = 0; i < count; ++i)
            std::memcpy(to + i * width_, from + size_t(rows[start + i]) * width_, 4 * size_t(width_));
        });
        std::fill(to + count * width_, to + size_t(bucket) * width_, 0.0f);
      });
      if (sampler.in_chunks) score_in_chunks(sampler, inputs, bucket, count, out);
      else score_at_once(sampler, inputs, bucket, count, out);
    }
    return out;
  }

  void score_at_once(const Sampler& sampler, Buffers& inputs, int bucket, size_t count,
                     Scores& out) {
    const std::string signature = "rows" + std::to_string(bucket);
    if (!penalty_) {
      penalty_ = head_->input(signature, "penalty");
      penalty_->write(size_t(vocabulary_), [&](float* numbers) {
        for (const int id : sampler.forbidden_ids)
          if (id < vocabulary_) numbers[id] = -1e30f;
      });
    }
    inputs["penalty"] = penalty_;
    const auto& outputs = timed(*head_, head_name_, signature, inputs, {"head", bucket, 0, 1, {}});
    get(outputs, "token").read<int32_t>(
        size_t(bucket), [&](const int32_t* ids) { out.token.insert(out.token.end(), ids, ids + count); });
    get(outputs, "confidence").read(
        size_t(bucket), [&](const float* p) { out.confidence.insert(out.confidence.end(), p, p + count); });
  }

  void score_in_chunks(const Sampler& sampler, const Buffers& inputs, int bucket,
                       size_t count, Scores& out) {
    std::vector<float> logits(count * size_t(vocabulary_));
    for (int chunk = 0; chunk * chunk_ < vocabulary_; ++chunk) {
      const std::string signature = "rows" + std::to_string(bucket) + "_chunk" + std::to_string(chunk);
      const size_t ids = size_t(std::min(chunk_, vocabulary_ - chunk * chunk_));
      const Buffers& outputs = timed(*head_, head_name_, signature, inputs, {"", bucket, 0, 1, {}});
      get(outputs, "logits").read(bucket * ids, [&](const float* from) {
        for (size_t row = 0; row < count; ++row)
          std::memcpy(&logits[row * vocabulary_ + size_t(chunk) * chunk_], from + row * ids, 4 * ids);
      });
    }
    for (size_t row = 0; row < count; ++row) {
      float* line = &logits[row * vocabulary_];
      for (const int id : sampler.forbidden_ids)
        if (id < vocabulary_) line[id] = -INFINITY;
      const int best = int(std::max_element(line, line + vocabulary_) - line);
      double total = 0, weighted = 0, second = -INFINITY;
      for (int id = 0; id < vocabulary_; ++id) {
        const double below = double(line[id]) - line[best], share = std::exp(below);
        total += share;
        if (share > 0) weighted += share * below;
        if (id != best) second = std::max(second, below);
      }
      out.token.push_back(best);
      out.confidence.push_back(1 / total);
      out.entropy.push_back(std::log(total) - weighted / total);
      out.margin.push_back((1 - std::exp(second)) / total);
    }
  }
};
