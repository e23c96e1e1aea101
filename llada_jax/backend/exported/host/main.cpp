// Decodes with an exported folder, without Python. `llada_host --help` lists the options.
//
// Exit codes: 0; 1 if --golden found another answer; 2 for bad options, files and prompts, and for
// a failure of LiteRT. Every error is one line on stderr.
#include <sched.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <set>

#include "session.h"
#include "tokenizer.h"

namespace {

constexpr const char* k_usage = R"(usage: llada_host FOLDER [options]
  --prompt TEXT          answer one message (of a chat, if the model has a chat template)
  --raw TEXT             continue a text, in which control tokens may be spelled
  --system TEXT          system message of chats
  --interactive          answer each line of the standard input; the chat goes on
  --golden FILE          decode each line {"prompt": [ids], "answer": [ids]}, and compare
  --tokenize             print the ids of each line of the standard input, a text in JSON, and stop
  --sampler NAME         one of the contract (default: its default)
  --gen-length N         tokens to generate (default: the sampler's)
  --threshold P          confidence at which tokens are committed (default: the sampler's)
  --csv FILE             write the time of each signature, for experiments.calibrate
  --thermal N            Android's thermal status, for the CSV file
  --library FILE         libLiteRt.so (default: found by the loader)
  --threads N            threads of LiteRT (default: one for each core)
  --packed FOLDER        keep weights that LiteRT has packed there, for quicker starts
  --soc NAME             run the layers on the NPU of this chip (SM8750), from its contexts
  --dispatch FOLDER      folder of LiteRT's dispatch library, for --soc
  --no-check             do not compare the files' SHA-256 with the manifest
)";

using Options = std::map<std::string, std::string>;

Options read_options(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const std::string usage = k_usage;
    if (name.compare(0, 2, "--") != 0) {
      require(!options.count("folder"), "there are two folders; allowed: one");
      options["folder"] = name;
      continue;
    }
    const size_t found = usage.find("\n  " + name + " ");
    require(found != std::string::npos || name == "--help", name + " is no option; allowed: see --help");
    if (name == "--help" || usage[found + name.size() + 4] == ' ') {
      options[name] = "yes";
    } else {
      require(i + 1 < count, name + " has no value; allowed: one");
      options[name] = arguments[++i];
    }
  }
  return options;
}

std::string text_of(const Options& options, const std::string& name, const std::string& other = "") {
  const auto found = options.find(name);
  return found == options.end() ? other : found->second;
}

double number_of(const Options& options, const std::string& name, double most, double other) {
  const std::string text = text_of(options, name);
  if (text.empty()) return other;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  require(*end == 0 && value > 0 && value <= most, name + " is " + text + "; allowed: a number above 0");
  return value;
}

void check_file(const std::string& folder, const Json& file, bool hashes) {
  const std::string path = folder + "/" + file["name"].text();
  struct stat status {};
  require(stat(path.c_str(), &status) == 0, path + " is missing; manifest.json names it");
  require(status.st_size == file["bytes"].integer(), path + " is cut short or changed: it has " +
                                                         std::to_string(status.st_size) + " bytes");
  require(!hashes || Sha256::of_file(path) == file["sha256"].text(), path + " is changed: its SHA-256 differs");
}

Json read_manifest(const std::string& folder) {
  const std::string path = folder + "/manifest.json";
  Json manifest = Json::read(path);
  const int64_t format = manifest["format"].integer();
  require(format == 2, path + " has format " + std::to_string(format) + "; allowed: 2");
  return manifest;
}

struct Answer {
  std::vector<int> ids;
  int forwards;
  double seconds;
};

Answer decode(Session& session, const Sampler& sampler, const std::vector<int>& prompt) {
  using Clock = std::chrono::steady_clock;
  Canvas canvas(sampler, prompt);
  session.begin(sampler, canvas);
  const Clock::time_point began = Clock::now();
  while (!canvas.done) {
    const Canvas::Plan plan = canvas.plan();
    canvas.decide(plan, session.step(canvas, plan));
  }
  return {canvas.answer(), canvas.forwards, std::chrono::duration<double>(Clock::now() - began).count()};
}

// Writes the columns that experiments.calibrate reads.
void write_csv(const std::string& path, const Timings& timings, const Json& manifest, const std::string& thermal) {
  std::ofstream file(path);
  file << "name,file,signature,graph,processor,precision,rows,cache,layers,median_ms,p5_ms,p95_ms,runs,"
          "thermal,version\n";
  const std::string quant = manifest["settings"]["quant"].text();
  for (const auto& [key, timing] : timings) {
    if (timing.graph.empty()) continue;  // chunks of the head are no graph that is calibrated
    std::vector<double> ms = timing.ms;
    std::sort(ms.begin(), ms.end());
    const auto at = [&](double share) { return ms[size_t(share * double(ms.size() - 1) + 0.5)]; };
    const bool on_npu = key.first.compare(0, 8, "context-") == 0;
    std::string precision = timing.graph == "head" && quant != "float32" ? "int8" : quant.substr(0, quant.find('_'));
    if (on_npu) precision = manifest["settings"]["phones"]["precision"].text();
    if (on_npu && precision != "fp16") precision = precision == "a16w4" ? "int4" : "int8";
    file << key.first << '-' << key.second << ',' << key.first << ',' << key.second << ',' << timing.graph << ','
         << (on_npu ? "npu" : "cpu") << ',' << precision << ',' << timing.rows << ',' << timing.cache << ','
         << timing.layers << ',' << at(0.5) << ',' << at(0.05) << ',' << at(0.95) << ',' << ms.size() << ','
         << thermal << ',' << manifest["versions"]["ai-edge-litert"].text() << '\n';
  }
  require(bool(file.flush()), path + " cannot be written");
}

class Program {
 public:
  explicit Program(const Options& options)
      : options_(options), folder_(options.at("folder")), manifest_(read_manifest(folder_)),
        contract_(manifest_["contract"]) {}

  int run() {
    if (contract_.has("control_ids"))
      tokenizer_ = std::make_unique<Tokenizer>(Json::read(folder_ + "/tokenizer.json"), contract_);
    if (options_.count("--tokenize")) {
      for (std::string line; std::getline(std::cin, line); std::cout << '\n')
        for (const int id : tokenizer().encode(code_points(Json::parse(line).text(), "a line"))) std::cout << id << ' ';
      return 0;
    }
    check_files(text_of(options_, "--soc"));
    const int gen_length = int(number_of(options_, "--gen-length", 1 << 20, 0));
    const Sampler sampler(contract_, text_of(options_, "--sampler", contract_["default_sampler"].text()), gen_length,
                          number_of(options_, "--threshold", 1, 0));
    const LiteRt litert(text_of(options_, "--library", LITERT_LIBRARY), text_of(options_, "--dispatch"),
                        int(number_of(options_, "--threads", 1024, cores())));
    Session session(litert, folder_, manifest_, text_of(options_, "--soc"), text_of(options_, "--packed"));
    int status = 0;
    if (options_.count("--golden")) status = compare(session, sampler);
    else if (options_.count("--interactive")) talk(session, sampler);
    else answer(session, sampler, prompt_ids());
    if (options_.count("--csv"))
      write_csv(options_.at("--csv"), session.timings, manifest_, text_of(options_, "--thermal"));
    return status;
  }

 private:
  const Options& options_;
  std::string folder_;
  Json manifest_;
  const Json& contract_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Message> chat_;

  // Checks the files that a run reads; a phone has no others.
  void check_files(const std::string& soc) const {
    std::set<std::string> used{contract_["rotation"].text(), "tokenizer.json"};
    for (const Json& context : manifest_["contexts"].list())
      if (context["soc"].text() == soc) used.insert(context["compiled"].text());
    std::vector<const Json*> files{&manifest_["head"], &manifest_["embedding"]};
    for (const Json& shard : manifest_["shards"].list())
      if (soc.empty()) files.push_back(&shard["file"]);
    for (const Json& file : manifest_["others"].list())
      if (used.count(file["name"].text())) files.push_back(&file);
    for (const Json* file : files) check_file(folder_, *file, !options_.count("--no-check"));
  }
  static int cores() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  }
  const Tokenizer& tokenizer() const {
    require(tokenizer_ != nullptr, "the folder has no tokenizer; allowed: --golden");
    return *tokenizer_;
  }
  std::vector<int> prompt_ids() {
    if (options_.count("--raw")) return tokenizer().encode(code_points(options_.at("--raw"), "the prompt"));
    require(options_.count("--prompt"), "there is no prompt; allowed: --prompt, --raw, --interactive or --golden");
    return chat_ids(options_.at("--prompt"));
  }
  std::vector<int> chat_ids(const std::string& question) {
    if (!contract_.has("chat")) return tokenizer().encode(code_points(question, "the prompt"));
    if (chat_.empty() && options_.count("--system")) chat_.push_back({"system", options_.at("--system")});
    chat_.push_back({"user", question});
    return encode_chat(tokenizer(), contract_["chat"], chat_);
  }
  std::string answer(Session& session, const Sampler& sampler, const std::vector<int>& ids) const {
    const Answer found = decode(session, sampler, ids);
    const std::vector<int> ends = contract_["end_ids"].integers();
    const auto end = std::find_first_of(found.ids.begin(), found.ids.end(), ends.begin(), ends.end());
    const std::string text = tokenizer().decode({found.ids.begin(), end});
    std::cout << text << std::endl;
    report(1, found.forwards, found.seconds);
    return text;
  }
  void talk(Session& session, const Sampler& sampler) {
    for (std::string line; std::cout << "> " << std::flush, std::getline(std::cin, line);) {
      const std::vector<int> ids = chat_ids(line);
      chat_.push_back({"assistant", answer(session, sampler, ids)});
    }
  }
  int compare(Session& session, const Sampler& sampler) const {
    const std::string path = options_.at("--golden");
    std::istringstream lines(read_file(path));
    int canvases = 0, equal = 0, forwards = 0;
    double seconds = 0;
    for (std::string line; std::getline(lines, line); ++canvases) {
      const Json golden = Json::parse(line);
      const Answer found = decode(session, sampler, golden["prompt"].integers());
      const bool same = found.ids == golden["answer"].integers();
      if (!same) std::cout << "line " << canvases + 1 << " of " << path << " has another answer\n";
      equal += same, forwards += found.forwards, seconds += found.seconds;
    }
    std::cout << equal << " of " << canvases << " answers are equal\n";
    report(canvases, forwards, seconds);
    return equal == canvases ? 0 : 1;
  }
  static void report(int canvases, int forwards, double seconds) {
    std::ifstream status("/proc/self/status");  // getrusage includes the process before exec
    double peak = 0;
    for (std::string line; std::getline(status, line);)
      if (line.compare(0, 6, "VmHWM:") == 0) peak = std::atof(line.c_str() + 6) / 1e3;
    std::fprintf(stderr, "%d answers, %d forwards, %.3f s, %.3f ms a forward, %.0f MB at most\n", canvases, forwards,
                 seconds, 1e3 * seconds / std::max(forwards, 1), peak);
  }
};

}  // namespace

int main(int count, char** arguments) {
  try {
    const Options options = read_options(count, arguments);
    if (options.count("--help") || !options.count("folder")) {
      std::cout << k_usage;
      return options.count("--help") ? 0 : 2;
    }
    return Program(options).run();
  } catch (const std::exception& error) {
    std::cerr << "llada_host: " << error.what() << std::endl;
    return 2;
  }
}
