// Runs .tflite files with LiteRT's C interface (2.2 to 2.3), from a library that is loaded when the
// program starts. Only the functions that are used are declared here.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "json.h"

class LiteRt {
 public:
  using Handle = void*;
  struct Any {
    int32_t type;
    union {
      int64_t integer;
      const char* text;
    };
  };
  struct EnvironmentOption {
    int32_t tag;
    Any value;
  };
  struct TensorType {  // LiteRtRankedTensorType
    int32_t element, bits;
    int32_t dimensions[8];
    uint32_t strides[8];
    int rank() const { return bits & 127; }
  };
  static_assert(sizeof(Any) == 16 && sizeof(EnvironmentOption) == 24 && sizeof(TensorType) == 72, "LiteRT's ABI");

  LiteRt(const std::string& library, const std::string& dispatch_folder, int n_threads) : threads(n_threads) {
    library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    require(library_ != nullptr, "LiteRT cannot be loaded (" + std::string(library_ ? "" : dlerror()) +
                                     "); allowed: --library path/to/libLiteRt.so");
    std::vector<EnvironmentOption> options{{25, {2, {3}}}};  // only errors are logged
    if (!dispatch_folder.empty()) {
      options.push_back({1, {8, {}}});
      options.back().value.text = dispatch_folder.c_str();
    }
    call("LiteRtCreateEnvironment", int(options.size()), options.data(), &environment);
  }

  // Calls a function of the library, and raises Error unless it returns 0.
  template <typename... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const int status = function<int(Arguments...)>(name)(arguments...);
    require(status == 0, std::string("LiteRT's ") + name + " failed with status " + std::to_string(status));
  }
  template <typename Signature>
  Signature* function(const char* name) const {
    void*& found = functions_[name];
    if (!found) found = dlsym(library_, name);
    require(found != nullptr, std::string("LiteRT has no ") + name + "; allowed: LiteRT 2.2 to 2.3");
    return reinterpret_cast<Signature*>(found);
  }
  Handle environment = nullptr;
  const int threads;

 private:
  void* library_;
  mutable std::map<std::string, void*> functions_;
};

// Memory of an input or output. It is locked while the host reads or writes it, as an NPU requires.
// Every use states the number of elements: a damaged manifest may contradict the graphs.
class Buffer {
 public:
  Buffer(const LiteRt& litert, const LiteRt::TensorType& type, LiteRt::Handle requirements) : litert_(litert) {
    for (int i = 0; i < type.rank(); ++i) size_ *= size_t(type.dimensions[i]);
    is_float_ = type.element == 1;
    require(is_float_ || type.element == 2, "a graph has other numbers; allowed: float32 and int32");
    litert.call("LiteRtCreateManagedTensorBufferFromRequirements", litert.environment, &type, requirements, &handle);
    write(size_, [&](float* numbers) { std::fill_n(numbers, size_, 0.0f); });
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { litert_.function<void(LiteRt::Handle)>("LiteRtDestroyTensorBuffer")(handle); }

  template <typename Use>
  void write(size_t size, Use use) { map(size, 2, [&](void* address) { use(static_cast<float*>(address)); }); }
  template <typename Number = float, typename Use>
  void read(size_t size, Use use) const {
    require(is_float_ == std::is_same<Number, float>::value, "an output has other numbers than the contract");
    map(size, 0, [&](void* address) { use(static_cast<const Number*>(address)); });
  }
  LiteRt::Handle handle = nullptr;

 private:
  const LiteRt& litert_;
  size_t size_ = 1;
  bool is_float_ = true;

  template <typename Use>
  void map(size_t size, int mode, Use use) const {
    require(size == size_, "an array of a graph has " + std::to_string(size_) + " numbers; the manifest requires " +
                               std::to_string(size));
    void* address = nullptr;
    litert_.call("LiteRtLockTensorBuffer", handle, &address, mode);
    use(address);
    litert_.call("LiteRtUnlockTensorBuffer", handle);
  }
};
using SharedBuffer = std::shared_ptr<Buffer>;
using Buffers = std::map<std::string, SharedBuffer>;  // by name

inline Buffer& get(const Buffers& buffers, const std::string& name) {
  const auto found = buffers.find(name);
  require(found != buffers.end(), "a graph has no " + name + ", which the contract names");
  return *found->second;
}

// A .tflite file, opened.
class Graph {
 public:
  Graph(const LiteRt& litert, const std::string& path, const std::string& packed, int accelerators) : litert_(litert) {
    litert.call("LiteRtCreateModelFromFile", litert.environment, path.c_str(), &model_);
    LiteRt::Handle options = nullptr;
    litert.call("LiteRtCreateOptions", &options);
    litert.call("LiteRtSetOptionsHardwareAccelerators", options, accelerators);
    std::string cpu = "num_threads = " + std::to_string(litert.threads) + "\n";
    if (!packed.empty()) cpu += "weight_cache_file_path = \"" + packed + "\"\n";
    add(options, "xnnpack", cpu);
    if (accelerators & 4) add(options, "qualcomm", "htp_performance_mode = 2\n");  // bursts
    litert.call("LiteRtCreateCompiledModel", litert.environment, model_, options, &compiled_);
    litert.function<void(LiteRt::Handle)>("LiteRtDestroyOptions")(options);
    size_t count = 0;
    litert.call("LiteRtGetNumModelSignatures", model_, &count);
    for (size_t i = 0; i < count; ++i) {
      LiteRt::Handle signature = nullptr;
      const char* name = nullptr;
      litert.call("LiteRtGetModelSignature", model_, i, &signature);
      litert.call("LiteRtGetSignatureKey", signature, &name);
      signatures_[name] = {i, tensors(signature, i, "Input"), tensors(signature, i, "Output"), {}};
    }
    path_ = path;
  }
  Graph(const Graph&) = delete;

  SharedBuffer input(const std::string& signature, const std::string& name) const {
    for (const Tensor& tensor : find(signature).inputs)
      if (tensor.name == name) return allocate(tensor);
    throw Error(path_ + ", " + signature + " has no input " + name);
  }

  // Runs a signature. Outputs are valid until it runs again.
  const Buffers& run(const std::string& name, const Buffers& inputs) {
    Signature& signature = find(name);
    if (signature.results.empty())
      for (const Tensor& tensor : signature.outputs) signature.results[tensor.name] = allocate(tensor);
    std::vector<LiteRt::Handle> in, out;
    for (const Tensor& tensor : signature.inputs) {
      const auto found = inputs.find(tensor.name);
      require(found != inputs.end(), path_ + ", " + name + " takes " + tensor.name + ", which is not in the contract");
      in.push_back(found->second->handle);
    }
    for (const Tensor& tensor : signature.outputs) out.push_back(signature.results[tensor.name]->handle);
    litert_.call("LiteRtRunCompiledModel", compiled_, signature.index, in.size(), in.data(), out.size(), out.data());
    return signature.results;
  }

 private:
  struct Tensor {
    std::string name;
    LiteRt::TensorType type;
    LiteRt::Handle requirements;
  };
  struct Signature {
    size_t index;
    std::vector<Tensor> inputs, outputs;
    Buffers results;
  };
  const LiteRt& litert_;
  std::string path_;
  LiteRt::Handle model_ = nullptr, compiled_ = nullptr;
  mutable std::map<std::string, Signature> signatures_;

  Signature& find(const std::string& name) const {
    const auto found = signatures_.find(name);
    require(found != signatures_.end(), path_ + " has no signature " + name);
    return found->second;
  }
  void add(LiteRt::Handle options, const char* identifier, const std::string& toml) const {
    LiteRt::Handle opaque = nullptr;
    void (*deleter)(void*) = [](void* text) { std::free(text); };
    litert_.call("LiteRtCreateOpaqueOptions", identifier, static_cast<void*>(strdup(toml.c_str())), deleter, &opaque);
    litert_.call("LiteRtAddOpaqueOptions", options, opaque);
  }
  // `end` is Input or Output.
  std::vector<Tensor> tensors(LiteRt::Handle signature, size_t index, const std::string& end) const {
    size_t count = 0;
    litert_.call(("LiteRtGetNumSignature" + end + "s").c_str(), signature, &count);
    std::vector<Tensor> out(count);
    for (size_t i = 0; i < count; ++i) {
      const char* name = nullptr;
      LiteRt::Handle tensor = nullptr;
      litert_.call(("LiteRtGetSignature" + end + "Name").c_str(), signature, i, &name);
      litert_.call(("LiteRtGetSignature" + end + "TensorByIndex").c_str(), signature, i, &tensor);
      litert_.call("LiteRtGetRankedTensorType", tensor, &out[i].type);
      litert_.call(("LiteRtGetCompiledModel" + end + "BufferRequirements").c_str(), compiled_, index, i,
                   &out[i].requirements);
      out[i].name = name;
    }
    return out;
  }
  SharedBuffer allocate(const Tensor& tensor) const {
    return std::make_shared<Buffer>(litert_, tensor.type, tensor.requirements);
  }
};
