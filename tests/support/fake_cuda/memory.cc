#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::fake_cuda {
namespace {

constexpr std::byte kUnwritten{0xCD};
constexpr size_t kLargest = size_t{16} << 30;  // of an allocation: more is "out of memory"

struct Region {
  Place place = Place::kDevice;
  size_t size = 0;
  std::byte* view = nullptr;
  int device = 0;
  int descriptor = -1;         // of what was allocated here; -1: pinned, or opened from a handle
  bool is_registered = false;  // the program's own memory, which is not ours to unmap
};

std::map<const std::byte*, Region>& Regions() {
  static auto* const regions = new std::map<const std::byte*, Region>();
  return *regions;
}

// Maps a file twice: for the program without access, and for us.
cudaError_t MapDevice(int descriptor, size_t size, Region region, void** address) {
  void* const seen = mmap(nullptr, size, PROT_NONE, MAP_SHARED, descriptor, 0);
  void* const view = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (seen == MAP_FAILED || view == MAP_FAILED) return cudaErrorMemoryAllocation;
  region.size = size;
  region.view = static_cast<std::byte*>(view);
  Regions()[static_cast<std::byte*>(seen)] = region;
  *address = seen;
  return cudaSuccess;
}

cudaError_t Free(void* address, Place place, bool opened) {
  if (address == nullptr) return cudaSuccess;
  RunAll();
  const auto found = Regions().find(static_cast<std::byte*>(address));
  if (found == Regions().end() || found->second.place != place || found->second.is_registered ||
      (place == Place::kDevice && (found->second.descriptor < 0) != opened)) {
    return cudaErrorInvalidValue;
  }
  const Region region = found->second;
  Regions().erase(found);
  munmap(region.view, region.size);
  if (place == Place::kDevice) munmap(address, region.size);
  if (region.descriptor >= 0) close(region.descriptor);
  return cudaSuccess;
}

// What stands in an IPC handle.
struct Exported {
  int64_t process;
  int64_t descriptor;
  uint64_t size;
};
static_assert(sizeof(Exported) <= sizeof(cudaIpcMemHandle_t));

}  // namespace

View ViewOf(const void* address, size_t size) {
  const auto* const at = static_cast<const std::byte*>(address);
  auto found = Regions().upper_bound(at);
  if (found != Regions().begin()) {
    const auto& [base, region] = *--found;
    const auto offset = static_cast<size_t>(at - base);
    if (offset < region.size) {
      return {region.place, size <= region.size - offset ? region.view + offset : nullptr,
              region.device};
    }
  }
  return {Place::kPageable, const_cast<std::byte*>(at), 0};
}

}  // namespace eplb::fake_cuda

using eplb::fake_cuda::Place;
using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t cudaMalloc(void** address, size_t size) {
  const Lock lock(eplb::fake_cuda::Mutex());
  *address = nullptr;
  if (size == 0) return cudaSuccess;
  if (size > eplb::fake_cuda::kLargest) return cudaErrorMemoryAllocation;
  const int descriptor = memfd_create("fake device memory", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(size)) != 0) {
    return cudaErrorMemoryAllocation;
  }
  const cudaError_t error = eplb::fake_cuda::MapDevice(
      descriptor, size, {.device = eplb::fake_cuda::CurrentDevice(), .descriptor = descriptor},
      address);
  if (error == cudaSuccess) {
    std::memset(eplb::fake_cuda::ViewOf(*address, size).bytes,
                std::to_integer<int>(eplb::fake_cuda::kUnwritten), size);
  }
  return error;
}

cudaError_t cudaFree(void* address) {
  const Lock lock(eplb::fake_cuda::Mutex());
  return eplb::fake_cuda::Free(address, Place::kDevice, /*opened=*/false);
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned int) {
  const Lock lock(eplb::fake_cuda::Mutex());
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return cudaErrorMemoryAllocation;
  auto* const bytes = static_cast<std::byte*>(memory);
  eplb::fake_cuda::Regions()[bytes] = {.place = Place::kPinned, .size = size, .view = bytes};
  *address = memory;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* address) {
  const Lock lock(eplb::fake_cuda::Mutex());
  return eplb::fake_cuda::Free(address, Place::kPinned, /*opened=*/false);
}

cudaError_t cudaHostRegister(void* address, size_t size, unsigned int) {
  const Lock lock(eplb::fake_cuda::Mutex());
  auto* const bytes = static_cast<std::byte*>(address);
  const bool is_new = eplb::fake_cuda::Regions()
                          .try_emplace(bytes, eplb::fake_cuda::Region{.place = Place::kPinned,
                                                                      .size = size,
                                                                      .view = bytes,
                                                                      .is_registered = true})
                          .second;
  return is_new ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}

cudaError_t cudaHostUnregister(void* address) {
  const Lock lock(eplb::fake_cuda::Mutex());
  eplb::fake_cuda::RunAll();
  const auto found = eplb::fake_cuda::Regions().find(static_cast<std::byte*>(address));
  if (found == eplb::fake_cuda::Regions().end() || !found->second.is_registered) {
    return cudaErrorHostMemoryNotRegistered;
  }
  eplb::fake_cuda::Regions().erase(found);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  const Lock lock(eplb::fake_cuda::Mutex());
  const auto view = eplb::fake_cuda::ViewOf(address, 1);
  *attributes = {};
  attributes->device = view.device;
  attributes->type = view.place == Place::kDevice   ? cudaMemoryTypeDevice
                     : view.place == Place::kPinned ? cudaMemoryTypeHost
                                                    : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  const Lock lock(eplb::fake_cuda::Mutex());
  const auto found = eplb::fake_cuda::Regions().find(static_cast<std::byte*>(address));
  if (found == eplb::fake_cuda::Regions().end() || found->second.descriptor < 0) {
    return cudaErrorInvalidValue;
  }
  const eplb::fake_cuda::Exported exported{getpid(), found->second.descriptor, found->second.size};
  *handle = {};
  std::memcpy(handle, &exported, sizeof(exported));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned int) {
  const Lock lock(eplb::fake_cuda::Mutex());
  eplb::fake_cuda::Exported exported;
  std::memcpy(&exported, &handle, sizeof(exported));
  if (exported.process == getpid()) return cudaErrorInvalidResourceHandle;
  const std::string path =
      "/proc/" + std::to_string(exported.process) + "/fd/" + std::to_string(exported.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return cudaErrorMapBufferObjectFailed;
  const cudaError_t error = eplb::fake_cuda::MapDevice(
      descriptor, exported.size, {.device = eplb::fake_cuda::CurrentDevice()}, address);
  close(descriptor);
  return error;
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  const Lock lock(eplb::fake_cuda::Mutex());
  return eplb::fake_cuda::Free(address, Place::kDevice, /*opened=*/true);
}
