// What needs neither memory nor streams.
#include <array>
#include <cstring>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace {

thread_local int current_device = 0;

std::array<bool, eplb::fake_cuda::kDevices> contexts{};  // under Mutex

}  // namespace

namespace eplb::fake_cuda {

int CurrentDevice() { return current_device; }

bool HasContext(int device) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  return contexts[static_cast<size_t>(device)];
}

void MakeContext(int device) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  contexts[static_cast<size_t>(device)] = true;
}

}  // namespace eplb::fake_cuda

namespace fake = eplb::fake_cuda;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = fake::kDevices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= fake::kDevices) return fake::Keep(cudaErrorInvalidDevice);
  fake::MakeContext(device);
  current_device = device;
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
