// Calls of the runtime that need neither memory nor streams.
#include <array>
#include <cstring>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace {

constexpr int kNoContext = -1;

thread_local int current_device = 0;
thread_local int current_context = kNoContext;  // the driver's, of this device

std::array<bool, eplb::fake_cuda::kDevices> contexts{};  // under Mutex

}  // namespace

namespace eplb::fake_cuda {

int CurrentDevice() { return current_context == kNoContext ? current_device : current_context; }

bool HasContext(int device) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  return contexts[static_cast<size_t>(device)];
}

int CurrentContext() { return current_context; }
void SetCurrentContext(int device) { current_context = device; }

void UseContext() {
  current_context = CurrentDevice();
  contexts[static_cast<size_t>(current_context)] = true;
}

void ForgetContexts() {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  contexts = {};
  current_context = kNoContext;
  current_device = 0;
}

}  // namespace eplb::fake_cuda

namespace fake = eplb::fake_cuda;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake::kDevices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = fake::CurrentDevice();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= fake::kDevices) return fake::Keep(cudaErrorInvalidDevice);
  const std::lock_guard<std::recursive_mutex> lock(fake::Mutex());
  current_device = device;
  fake::SetCurrentContext(device);
  fake::UseContext();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMultiProcessorCount) return fake::Keep(cudaErrorNotSupported);
  *value = 4;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strncpy(properties->name, "stand-in for a GPU", sizeof(properties->name) - 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int other) {
  *can = device != other && fake::PeersReachEachOther() ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = fake::DriverEntryPoint(name);
  *result = *function == nullptr ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
