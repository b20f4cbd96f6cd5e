// Wraps the calls of the CUDA runtime that the files of cuda/ share.
#include "cuda/runtime.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include <cuda.h>

#include "base/status_macros.h"

namespace eplb::cuda {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return absl::StatusCode::kOk;
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return absl::StatusCode::kFailedPrecondition;
    case cudaErrorNotReady:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Returns "device 0 has 7.5"; empty if the device cannot be asked.
std::string CapabilityOfCurrentDevice() {
  int device = 0;
  int major = 0;
  int minor = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess;
  (void)cudaGetLastError();
  return known ? absl::StrCat("device ", device, " has ", major, ".", minor) : "";
}

// Names the architecture to build for if this build's kernels do not run on the device.
std::string MissingImage(cudaError_t error) {
  if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorUnsupportedPtxVersion)
    return "";
  const std::string device = CapabilityOfCurrentDevice();
  return absl::StrCat("; this build has kernels for the architectures ", EPLB_CUDA_ARCHITECTURES,
                      device.empty() ? "" : ", ", device,
                      " (CMAKE_CUDA_ARCHITECTURES chooses them at build time)");
}

// Names both versions if the driver is older than this build's runtime.
std::string OldDriver(cudaError_t error) {
  if (error != cudaErrorInsufficientDriver) return "";
  int driver = 0;
  (void)cudaDriverGetVersion(&driver);
  const auto version = [](int number) {
    return absl::StrCat(number / 1000, ".", number % 1000 / 10);
  };
  return absl::StrCat(
      "; this build has the runtime of CUDA ", version(CUDART_VERSION),
      driver == 0 ? ", and no driver is loaded" : ", the driver serves CUDA " + version(driver),
      " (docs/installing.md, \"GPUs and drivers\")");
}

constexpr int32_t kMovedFrom = -1;

// Driver calls for facts that the runtime hides: the existing contexts, and that of a thread.
struct ContextCalls {
  decltype(&cuDevicePrimaryCtxGetState) get_state;
  decltype(&cuCtxGetCurrent) get_current;
  decltype(&cuCtxSetCurrent) set_current;
};

const ContextCalls& Contexts() {
  static const ContextCalls calls{
      .get_state = reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(
          FindInDriver("cuDevicePrimaryCtxGetState")),
      .get_current = reinterpret_cast<decltype(&cuCtxGetCurrent)>(FindInDriver("cuCtxGetCurrent")),
      .set_current = reinterpret_cast<decltype(&cuCtxSetCurrent)>(FindInDriver("cuCtxSetCurrent"))};
  return calls;
}

// True if this process uses the device, or if the driver does not answer.
bool HasContext(int32_t device) {
  const auto get_state = Contexts().get_state;
  unsigned int flags = 0;
  int active = 0;
  // The runtime and the driver number devices alike.
  if (get_state == nullptr || get_state(device, &flags, &active) != CUDA_SUCCESS) return true;
  return active != 0;
}

// Returns the context of this thread; null: none.
CUcontext CurrentContext() {
  CUcontext context = nullptr;
  const auto get_current = Contexts().get_current;
  if (get_current == nullptr || get_current(&context) != CUDA_SUCCESS) return nullptr;
  return context;
}

}  // namespace

absl::Status ToStatus(cudaError_t error, std::string_view what) {
  const absl::StatusCode code = CodeOf(error);
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  (void)cudaGetLastError();
  return absl::Status(code, absl::StrCat(std::string(what), ": ", cudaGetErrorName(error), " (",
                                         static_cast<int>(error), "): ", cudaGetErrorString(error),
                                         MissingImage(error), OldDriver(error)));
}

void* FindInDriver(const char* name) {
  constexpr unsigned int kDriverVersion = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, kDriverVersion, cudaEnableDefault, &result);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? found : nullptr;
}

absl::StatusOr<Stream> MakeStream(StreamPriority priority) {
  int least = 0;
  int greatest = 0;
  EPLB_RETURN_IF_ERROR(ToStatus(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                "cudaDeviceGetStreamPriorityRange"));
  constexpr int kDefaultPriority = 0;
  cudaStream_t stream = nullptr;
  EPLB_RETURN_IF_ERROR(
      ToStatus(cudaStreamCreateWithPriority(
                   &stream, cudaStreamNonBlocking,
                   priority == StreamPriority::kHighest ? greatest : kDefaultPriority),
               "cudaStreamCreateWithPriority"));
  return Stream(stream);
}

absl::StatusOr<Event> MakeEvent() {
  cudaEvent_t event = nullptr;
  EPLB_RETURN_IF_ERROR(ToStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                "cudaEventCreateWithFlags"));
  return Event(event);
}

absl::StatusOr<DeviceMemory> MakeDeviceMemory(int64_t bytes) {
  void* memory = nullptr;
  EPLB_RETURN_IF_ERROR(ToStatus(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc"));
  return DeviceMemory(memory);
}

absl::StatusOr<PinnedMemory> MakePinnedMemory(int64_t bytes) {
  void* memory = nullptr;
  EPLB_RETURN_IF_ERROR(ToStatus(
      cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocDefault), "cudaHostAlloc"));
  return PinnedMemory(memory);
}

absl::StatusOr<PinnedRange> PinRange(std::span<std::byte> memory) {
  EPLB_RETURN_IF_ERROR(ToStatus(
      cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterDefault), "cudaHostRegister"));
  return PinnedRange(memory.data());
}

absl::StatusOr<DeviceGuard> DeviceGuard::Make(int32_t device) {
  const CUcontext context = CurrentContext();
  int previous = 0;
  EPLB_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&previous), "cudaGetDevice"));
  DeviceGuard guard(previous, context);  // restores even if the next call fails
  EPLB_RETURN_IF_ERROR(ToStatus(cudaSetDevice(device), "cudaSetDevice"));
  return guard;
}

DeviceGuard::DeviceGuard(DeviceGuard&& other) noexcept
    : previous_(std::exchange(other.previous_, kMovedFrom)), context_(other.context_) {}

DeviceGuard::~DeviceGuard() {
  if (previous_ == kMovedFrom) return;
  // The runtime's device comes first, because it makes that device's own context current.
  if (HasContext(previous_)) (void)cudaSetDevice(previous_);
  const ContextCalls& contexts = Contexts();
  if (contexts.get_current == nullptr || contexts.set_current == nullptr) return;
  (void)contexts.set_current(static_cast<CUcontext>(context_));
}

absl::StatusOr<int32_t> FigureOfDevice(
    KeptFigures& kept, std::string_view call,
    absl::FunctionRef<cudaError_t(int32_t* figure, int device)> ask) {
  int device = 0;
  EPLB_RETURN_IF_ERROR(ToStatus(cudaGetDevice(&device), "cudaGetDevice"));
  const auto index = static_cast<size_t>(device);
  if (index < kept.size()) {
    const int32_t known = kept[index].load(std::memory_order_relaxed);
    if (known != 0) return known;
  }
  int32_t figure = 0;
  EPLB_RETURN_IF_ERROR(ToStatus(ask(&figure, device), call));
  if (index < kept.size()) kept[index].store(figure, std::memory_order_relaxed);
  return figure;
}

absl::StatusOr<int32_t> NumMultiprocessors() {
  static KeptFigures kept{};
  return FigureOfDevice(kept, "cudaDeviceGetAttribute", [](int32_t* figure, int device) {
    return cudaDeviceGetAttribute(figure, cudaDevAttrMultiProcessorCount, device);
  });
}

}  // namespace eplb::cuda
