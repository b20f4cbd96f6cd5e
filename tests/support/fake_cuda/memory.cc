#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::fake_cuda {
namespace {

constexpr std::byte kUnwritten{0xCD};
constexpr size_t kLargest = size_t{16} << 30;  // largest allocation: more is "out of memory"
constexpr size_t kBlock = size_t{2} << 20;     // smaller allocations share one
constexpr size_t kFreshBytes = size_t{64} << 10;

struct Region {
  Place place = Place::kDevice;
  size_t size = 0;
  std::byte* view = nullptr;
  int device = 0;
  int descriptor = -1;         // allocation's own; -1: pinned, or opened from a handle
  bool is_registered = false;  // the program's own memory, which is not ours to unmap
  bool is_mapped = false;      // virtual memory
  bool is_foreign = false;     // memory of another process
  unsigned access = 0;         // virtual memory: a bit for each device
  std::vector<bool> fresh;     // for each kFreshBytes: these have no bytes yet, and get kUnwritten
};

std::map<const std::byte*, Region>& Regions() {
  static auto* const regions = new std::map<const std::byte*, Region>();
  return *regions;
}

// Null for memory that is not ours.
std::pair<const std::byte* const, Region>* Find(const void* address) {
  const auto* const at = static_cast<const std::byte*>(address);
  auto found = Regions().upper_bound(at);
  if (found == Regions().begin()) return nullptr;
  --found;
  return static_cast<size_t>(at - found->first) < found->second.size ? &*found : nullptr;
}

// Memory that is never read costs no pages: a queue's tables are longer than what tests put
// there.
void FillWhatIsFresh(Region& region, size_t offset, size_t size) {
  const size_t end = std::min(offset + size, region.size);
  for (size_t i = offset / kFreshBytes; i < region.fresh.size() && i * kFreshBytes < end; ++i) {
    if (!region.fresh[i]) continue;
    const size_t begin = i * kFreshBytes;
    std::memset(region.view + begin, std::to_integer<int>(kUnwritten),
                std::min(kFreshBytes, region.size - begin));
    region.fresh[i] = false;
  }
}

// Devices whose kernels were let into another's memory: bit [other] of [device].
std::array<unsigned, kDevices>& PeerAccess() {
  static auto* const access = new std::array<unsigned, kDevices>();
  return *access;
}

bool LosesWrites() {
  const char* const lost = std::getenv("EPLB_FAKE_CUDA_LOST_WRITES");
  return lost != nullptr && *lost == '1';
}

// Maps a file twice: for the program without access, and for us.
cudaError_t MapDevice(int descriptor, size_t size, Region region, void** address) {
  void* const seen = mmap(nullptr, size, PROT_NONE, MAP_SHARED, descriptor, 0);
  void* const view = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (seen == MAP_FAILED || view == MAP_FAILED) return Keep(cudaErrorMemoryAllocation);
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
      found->second.is_mapped ||
      (place == Place::kDevice && (found->second.descriptor < 0) != opened)) {
    return cudaErrorInvalidValue;
  }
  const Region region = found->second;
  TellOfFree(address, region.size);
  Regions().erase(found);
  munmap(region.view, region.size);
  if (place == Place::kDevice) munmap(address, region.size);
  if (region.descriptor >= 0) close(region.descriptor);
  return cudaSuccess;
}

// Content of an IPC handle.
struct Exported {
  int64_t process;
  int64_t descriptor;
  uint64_t size;
};
static_assert(sizeof(Exported) <= sizeof(cudaIpcMemHandle_t));

}  // namespace

View ViewOf(const void* address, size_t size) {
  const auto* const at = static_cast<const std::byte*>(address);
  auto* const found = Find(address);
  if (found == nullptr) return {.place = Place::kPageable, .bytes = const_cast<std::byte*>(at)};
  auto& [base, region] = *found;
  const auto offset = static_cast<size_t>(at - base);
  FillWhatIsFresh(region, offset, size);
  return {.place = region.place,
          .bytes = size <= region.size - offset ? region.view + offset : nullptr,
          .device = region.device,
          .is_mapped = region.is_mapped,
          .loses_writes = region.is_foreign && LosesWrites()};
}

bool CopyReaches(int device, const void* address) {
  const auto* const found = Find(address);
  return found == nullptr || !found->second.is_mapped || (found->second.access >> device & 1U) != 0;
}

bool KernelReaches(int device, const void* address) {
  const auto* const found = Find(address);
  if (found == nullptr) return false;
  const Region& region = found->second;
  if (region.is_mapped) return CopyReaches(device, address);
  return region.place == Place::kPinned || region.device == device || region.is_foreign ||
         (PeerAccess()[static_cast<size_t>(device)] >> region.device & 1U) != 0;
}

bool AddMapping(const Mapping& mapping) {
  void* const seen =
      mmap(mapping.address, mapping.size, PROT_NONE, MAP_SHARED | MAP_FIXED, mapping.descriptor, 0);
  void* const view =
      mmap(nullptr, mapping.size, PROT_READ | PROT_WRITE, MAP_SHARED, mapping.descriptor, 0);
  if (seen == MAP_FAILED || view == MAP_FAILED) return false;
  auto* const bytes = static_cast<std::byte*>(view);
  if (!mapping.is_imported) std::memset(bytes, std::to_integer<int>(kUnwritten), mapping.size);
  Regions()[static_cast<std::byte*>(mapping.address)] = {.place = Place::kDevice,
                                                         .size = mapping.size,
                                                         .view = bytes,
                                                         .device = mapping.device,
                                                         .is_mapped = true,
                                                         .is_foreign = mapping.is_imported};
  return true;
}

void SetAccess(const void* address, int device) {
  Regions().at(static_cast<const std::byte*>(address)).access |= 1U << device;
}

void RemoveMapping(void* address) {
  RunAll();
  const auto found = Regions().find(static_cast<std::byte*>(address));
  TellOfFree(address, found->second.size);
  munmap(found->second.view, found->second.size);
  // The addresses stay reserved.
  (void)mmap(address, found->second.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0);
  Regions().erase(found);
}

}  // namespace eplb::fake_cuda

namespace fake = eplb::fake_cuda;
using fake::Keep;
using fake::Place;

cudaError_t cudaMalloc(void** address, size_t size) {
  const fake::Call call("cudaMalloc");
  if (call.error() != cudaSuccess) return call.error();
  *address = nullptr;
  if (size == 0) return cudaSuccess;
  if (size > fake::kLargest) return Keep(cudaErrorMemoryAllocation);
  const int descriptor = memfd_create("fake device memory", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(size)) != 0) {
    return Keep(cudaErrorMemoryAllocation);
  }
  const size_t num_fresh = (size + fake::kFreshBytes - 1) / fake::kFreshBytes;
  return fake::MapDevice(descriptor, size,
                         {.device = fake::CurrentDevice(),
                          .descriptor = descriptor,
                          .fresh = std::vector<bool>(num_fresh, true)},
                         address);
}

cudaError_t cudaFree(void* address) {
  const fake::Call call("cudaFree");
  if (call.error() != cudaSuccess) return call.error();
  return fake::Free(address, Place::kDevice, /*opened=*/false);
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned int) {
  const fake::Call call("cudaHostAlloc");
  if (call.error() != cudaSuccess) return call.error();
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Keep(cudaErrorMemoryAllocation);
  auto* const bytes = static_cast<std::byte*>(memory);
  fake::Regions()[bytes] = {.place = Place::kPinned, .size = size, .view = bytes};
  *address = memory;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* address) {
  const fake::Call call("cudaFreeHost");
  if (call.error() != cudaSuccess) return call.error();
  return fake::Free(address, Place::kPinned, /*opened=*/false);
}

cudaError_t cudaHostRegister(void* address, size_t size, unsigned int) {
  const fake::Call call("cudaHostRegister");
  if (call.error() != cudaSuccess) return call.error();
  auto* const bytes = static_cast<std::byte*>(address);
  const bool is_new = fake::Regions()
                          .try_emplace(bytes, fake::Region{.place = Place::kPinned,
                                                           .size = size,
                                                           .view = bytes,
                                                           .is_registered = true})
                          .second;
  return is_new ? cudaSuccess : Keep(cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* address) {
  const fake::Call call("cudaHostUnregister");
  if (call.error() != cudaSuccess) return call.error();
  fake::RunAll();
  const auto found = fake::Regions().find(static_cast<std::byte*>(address));
  if (found == fake::Regions().end() || !found->second.is_registered) {
    return Keep(cudaErrorHostMemoryNotRegistered);
  }
  fake::Regions().erase(found);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  const fake::Call call("cudaPointerGetAttributes");
  if (call.error() != cudaSuccess) return call.error();
  fake::UseContext();  // same as runtimes before CUDA 13
  const auto view = fake::ViewOf(address, 1);
  *attributes = {};
  attributes->device = view.device;
  attributes->type = view.place == Place::kDevice   ? cudaMemoryTypeDevice
                     : view.place == Place::kPinned ? cudaMemoryTypeHost
                                                    : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  const fake::Call call("cudaIpcGetMemHandle");
  if (call.error() != cudaSuccess) return call.error();
  const auto found = fake::Regions().find(static_cast<std::byte*>(address));
  // CUDA would hand the neighbours in the last block over as well.
  if (found == fake::Regions().end() || found->second.descriptor < 0 ||
      found->second.size % fake::kBlock != 0) {
    return Keep(cudaErrorInvalidValue);
  }
  fake::FillWhatIsFresh(found->second, 0, found->second.size);  // others do not know what is
  const fake::Exported exported{getpid(), found->second.descriptor, found->second.size};
  *handle = {};
  std::memcpy(handle, &exported, sizeof(exported));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned int) {
  const fake::Call call("cudaIpcOpenMemHandle");
  if (call.error() != cudaSuccess) return call.error();
  fake::Exported exported;
  std::memcpy(&exported, &handle, sizeof(exported));
  if (exported.process == getpid()) return Keep(cudaErrorInvalidResourceHandle);
  const std::string path =
      "/proc/" + std::to_string(exported.process) + "/fd/" + std::to_string(exported.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return Keep(cudaErrorMapBufferObjectFailed);
  const cudaError_t error = fake::MapDevice(
      descriptor, exported.size, {.device = fake::CurrentDevice(), .is_foreign = true}, address);
  close(descriptor);
  return error;
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  const fake::Call call("cudaIpcCloseMemHandle");
  if (call.error() != cudaSuccess) return call.error();
  return fake::Free(address, Place::kDevice, /*opened=*/true);
}

cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned int) {
  const fake::Call call("cudaDeviceEnablePeerAccess");
  if (call.error() != cudaSuccess) return call.error();
  if (other == fake::CurrentDevice() || !fake::PeersReachEachOther()) {
    return Keep(cudaErrorPeerAccessUnsupported);
  }
  unsigned& access = fake::PeerAccess()[static_cast<size_t>(fake::CurrentDevice())];
  if ((access >> other & 1U) != 0) return Keep(cudaErrorPeerAccessAlreadyEnabled);
  access |= 1U << other;
  return cudaSuccess;
}
