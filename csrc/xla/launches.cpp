// A scan of the CUDA engine as an XLA custom call: launches on XLA's stream, between XLA's own products.
//
// Everything that a launch needs comes with the call, its machine code included, so that a compiled program
// can be kept and loaded by another process. Memory is XLA's: a call's scratch is among its results. The
// driver is found when the first call runs; nothing here needs CUDA when it is built. `jax/cuda.py` writes
// the attributes.
#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace zstate {
namespace {

namespace ffi = xla::ffi;
using i64 = std::int64_t;

// ---- the parts of the driver's interface that are used, as its documentation has them ----

using Status = int;  // 0: success
struct StreamObject;
using Stream = StreamObject*;

struct Attribute {
  enum Id : unsigned { kCooperative = 2, kClusterDimension = 4 };
  Id id;
  unsigned padding = 0;
  std::array<unsigned, 16> value = {};
};
static_assert(sizeof(Attribute) == 72);

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream stream;
  Attribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);

enum FunctionAttribute { kDynamicSharedBytes = 8, kLargeClusters = 14 };
enum CaptureMode { kRelaxed = 2 };

struct Driver {
  Status (*get_error_string)(Status, const char**);
  Status (*get_device)(int*);
  Status (*exchange_capture_mode)(int*);
  Status (*load_library)(void**, const void*, void*, void*, unsigned, void*, void*, unsigned);
  Status (*get_kernel)(void**, void*, const char*);
  Status (*set_attribute)(int, int, void*, int);
  Status (*fill)(std::uint64_t, unsigned, std::size_t, Stream);
  Status (*launch)(const LaunchConfig*, void*, void**, void**);
};

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The driver of this process, or null if there is none new enough.
const Driver* driver() {
  static const Driver* const found = []() -> const Driver* {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    static Driver d;
    const bool all = library && find(library, "cuGetErrorString", d.get_error_string) &&
                     find(library, "cuCtxGetDevice", d.get_device) &&
                     find(library, "cuThreadExchangeStreamCaptureMode", d.exchange_capture_mode) &&
                     find(library, "cuLibraryLoadData", d.load_library) &&
                     find(library, "cuLibraryGetKernel", d.get_kernel) &&
                     find(library, "cuKernelSetAttribute", d.set_attribute) &&
                     find(library, "cuMemsetD32Async", d.fill) && find(library, "cuLaunchKernelEx", d.launch);
    return all ? &d : nullptr;
  }();
  return found;
}

ffi::Error failed(const char* what, Status status) {
  const char* why = nullptr;
  driver()->get_error_string(status, &why);
  return ffi::Error::Internal(std::string("zstate: ") + what +
                              ": CUDA driver: " + (why ? why : "unknown error"));
}

// ---- a launch ----

// The numbers of the attribute `launch`, which jax/cuda.py names in `fields`.
struct Shape {
  i64 cooperative, cluster, threads, shared_bytes, first_group, exchange, filled_words;
};
constexpr std::string_view kFields =
    "cooperative cluster threads shared_bytes first_group exchange filled_words";
constexpr std::size_t kShapeNumbers = sizeof(Shape) / sizeof(i64);

struct Loaded {
  void* kernel = nullptr;
  std::set<int> devices;  // on which its attributes are set
};

// The kernel of a call, loaded once per process and ready on the current device. Loading may allocate, which
// a capturing stream forbids its thread unless it says otherwise.
ffi::Error load(std::string_view key, const void* code, const Shape& shape, void*& kernel) {
  static std::mutex mutex;
  static std::unordered_map<std::string, Loaded> every;
  const Driver& d = *driver();
  int device = 0;
  if (const Status status = d.get_device(&device)) return failed("finding the device", status);
  const std::lock_guard lock(mutex);
  Loaded& own = every[std::string(key)];
  if (!own.kernel || !own.devices.contains(device)) {
    int mode = kRelaxed;
    d.exchange_capture_mode(&mode);
    Status status = 0;
    if (!own.kernel) {
      void* library = nullptr;
      status = d.load_library(&library, code, nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (!status) status = d.get_kernel(&own.kernel, library, "scan");
    }
    if (!status)
      status = d.set_attribute(kDynamicSharedBytes, static_cast<int>(shape.shared_bytes), own.kernel, device);
    if (!status && shape.cluster > 8) status = d.set_attribute(kLargeClusters, 1, own.kernel, device);
    d.exchange_capture_mode(&mode);
    if (status) return failed("loading a kernel", status);
    own.devices.insert(device);
  }
  kernel = own.kernel;
  return ffi::Error::Success();
}

std::uint64_t address_of(ffi::RemainingArgs operands, ffi::RemainingRets results, std::size_t k) {
  const std::size_t count = operands.size();
  const ffi::AnyBuffer buffer =
      k < count ? *operands.get<ffi::AnyBuffer>(k) : **results.get<ffi::AnyBuffer>(k - count);
  return reinterpret_cast<std::uint64_t>(buffer.untyped_data());
}

ffi::Error run(Stream stream, ffi::RemainingArgs operands, ffi::RemainingRets results,
               ffi::Dictionary attributes) {
  using Numbers = ffi::Span<const i64>;
  const auto key = attributes.get<std::string_view>("key");
  const auto code = attributes.get<Numbers>("code"), launch = attributes.get<Numbers>("launch");
  const auto groups = attributes.get<Numbers>("groups"), words = attributes.get<Numbers>("words");
  const auto fields = attributes.get<std::string_view>("fields");
  if (!key || !code || !launch || !groups || !words || !fields || *fields != kFields ||
      launch->size() != kShapeNumbers || groups->size() % 2 || words->size() % 2 || attributes.size() != 6)
    return ffi::Error::InvalidArgument("zstate: the attributes of a launch are not those of this version");
  if (!driver()) return ffi::Error::Internal("zstate: there is no CUDA driver, or it is older than CUDA 12");
  const i64* const n = launch->begin();
  const Shape shape{n[0], n[1], n[2], n[3], n[4], n[5], n[6]};
  void* kernel = nullptr;
  if (const ffi::Error error = load(*key, code->begin(), shape, kernel); error.failure()) return error;

  // A word is a number, or an address: so many bytes into an operand or result.
  std::vector<std::uint64_t> arguments(words->size() / 2);
  for (std::size_t k = 0; k < arguments.size(); ++k) {
    const i64 buffer = words->begin()[2 * k], number = words->begin()[2 * k + 1];
    arguments[k] = static_cast<std::uint64_t>(number);
    if (buffer >= 0) arguments[k] += address_of(operands, results, static_cast<std::size_t>(buffer));
  }
  Attribute launched[2]{};
  unsigned launched_count = 0;
  if (shape.cluster > 1) {
    launched[launched_count].id = Attribute::kClusterDimension;
    launched[launched_count++].value = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.cooperative) {
    // The driver rejects a launch whose blocks cannot all be resident, so no wait is endless.
    launched[launched_count].id = Attribute::kCooperative;
    launched[launched_count++].value = {1};
  }
  LaunchConfig config{{1, 1, 1},
                      {static_cast<unsigned>(shape.threads), 1, 1},
                      static_cast<unsigned>(shape.shared_bytes),
                      stream,
                      launched,
                      launched_count};
  void* parameters[] = {arguments.data()};
  for (std::size_t k = 0; k < groups->size(); k += 2) {
    arguments[static_cast<std::size_t>(shape.first_group)] = static_cast<std::uint64_t>(groups->begin()[k]);
    config.grid[0] = static_cast<unsigned>(groups->begin()[k + 1]);
    if (shape.filled_words) {  // all ones: not there yet
      const std::uint64_t exchange = arguments[static_cast<std::size_t>(shape.exchange)];
      const auto count = static_cast<std::size_t>(shape.filled_words);
      if (const Status status = driver()->fill(exchange, ~0U, count, stream))
        return failed("clearing an exchange", status);
    }
    if (const Status status = driver()->launch(&config, kernel, parameters, nullptr))
      return failed("launching a scan", status);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace zstate

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(zstate_launch, zstate::run,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<zstate::Stream>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs(),
                              {xla::ffi::Traits::kCmdBufferCompatible});
#pragma GCC visibility pop
