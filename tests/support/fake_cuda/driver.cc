// The driver's own calls, and its virtual memory management: allocations are memfds,
// whose name has their device.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include <cuda.h>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb::fake_cuda {
namespace {

constexpr size_t kGranularity = size_t{2} << 20;
constexpr size_t kLargestVirtual = size_t{16} << 30;
constexpr char kName[] = "fake virtual memory of device ";

struct Allocation {
  int descriptor = -1;
  size_t size = 0;
  int device = 0;
  bool is_imported = false;
  int num_mappings = 0;
};
struct Reservation {
  size_t size = 0;
  CUmemGenericAllocationHandle mapped = 0;
};
struct VirtualState {
  std::map<CUmemGenericAllocationHandle, Allocation> allocations;
  std::map<CUdeviceptr, Reservation> reservations;
  CUmemGenericAllocationHandle next_handle = 1;
};
VirtualState& Virtual() {
  static auto* const state = new VirtualState();
  return *state;
}

using Lock = std::lock_guard<std::recursive_mutex>;

CUresult Begin(const char* name) {
  return Call(name).error() == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

std::string TargetOf(int descriptor) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error);
}

int NumOpenDescriptors() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::atoi(entry.path().filename().c_str());
    count += TargetOf(descriptor).find(kName) != std::string::npos ? 1 : 0;
  }
  return count;
}

void CheckExit() {
  const VirtualState& state = Virtual();
  const int descriptors = NumOpenDescriptors();
  if (state.allocations.empty() && state.reservations.empty() && descriptors == 0) return;
  std::fprintf(stderr,
               "virtual memory that was not released: %zu handles, %zu address ranges, %d "
               "descriptors\n",
               state.allocations.size(), state.reservations.size(), descriptors);
  _exit(kLeakExit);
}

void* At(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

CUresult ErrorName(CUresult, const char** name) {
  *name = "an error of the stand-in for CUDA's driver";
  return CUDA_SUCCESS;
}

CUresult ContextState(CUdevice device, unsigned int* flags, int* active) {
  *flags = 0;
  *active = HasContext(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

// A context is its device's number and one more, which is never dereferenced.
CUresult GetContext(CUcontext* context) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as above
  *context = reinterpret_cast<CUcontext>(static_cast<intptr_t>(CurrentContext() + 1));
  return CUDA_SUCCESS;
}

CUresult SetContext(CUcontext context) {
  SetCurrentContext(static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1);
  return CUDA_SUCCESS;
}

CUresult Attribute(int* value, CUdevice_attribute attribute, CUdevice) {
  if (attribute != CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED &&
      attribute != CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *value = 1;
  return CUDA_SUCCESS;
}

// Makes no context and needs none.
CUresult PointerAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const Lock lock(Mutex());
  const View view = ViewOf(At(pointer), 1);
  if (view.place == Place::kPageable) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned int*>(value) =
          view.place == Place::kDevice ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = view.device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned int*>(value) = 0;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

bool WillDo(const CUmemAllocationProp& properties) {
  return properties.type == CU_MEM_ALLOCATION_TYPE_PINNED &&
         properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties.location.id >= 0 &&
         properties.location.id < kDevices;
}

CUresult Granularity(size_t* granularity, const CUmemAllocationProp* properties,
                     CUmemAllocationGranularity_flags) {
  if (!WillDo(*properties)) return CUDA_ERROR_INVALID_VALUE;
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUmemGenericAllocationHandle Add(const Allocation& allocation) {
  static const int registered = std::atexit(&CheckExit);
  (void)registered;
  const CUmemGenericAllocationHandle handle = Virtual().next_handle++;
  Virtual().allocations[handle] = allocation;
  return handle;
}

CUresult Create(CUmemGenericAllocationHandle* handle, size_t size,
                const CUmemAllocationProp* properties, unsigned long long flags) {
  const Lock lock(Mutex());
  if (const CUresult met = Begin("cuMemCreate"); met != CUDA_SUCCESS) return met;
  if (!WillDo(*properties) || flags != 0 || size == 0 || size % kGranularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (size > kLargestVirtual) return CUDA_ERROR_OUT_OF_MEMORY;
  const int device = properties->location.id;
  const int descriptor = memfd_create((kName + std::to_string(device)).c_str(), MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(size)) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = Add({.descriptor = descriptor, .size = size, .device = device});
  return CUDA_SUCCESS;
}

CUresult Release(CUmemGenericAllocationHandle handle) {
  const Lock lock(Mutex());
  (void)Begin("cuMemRelease");  // also on a device that has failed
  const auto found = Virtual().allocations.find(handle);
  if (found == Virtual().allocations.end() || found->second.num_mappings > 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  close(found->second.descriptor);
  Virtual().allocations.erase(found);
  return CUDA_SUCCESS;
}

CUresult Export(void* shareable, CUmemGenericAllocationHandle handle,
                CUmemAllocationHandleType type, unsigned long long flags) {
  const Lock lock(Mutex());
  if (const CUresult met = Begin("cuMemExportToShareableHandle"); met != CUDA_SUCCESS) return met;
  const auto found = Virtual().allocations.find(handle);
  if (found == Virtual().allocations.end() || flags != 0 ||
      type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int descriptor = fcntl(found->second.descriptor, F_DUPFD_CLOEXEC, 0);
  std::memcpy(shareable, &descriptor, sizeof(descriptor));
  return CUDA_SUCCESS;
}

CUresult Import(CUmemGenericAllocationHandle* handle, void* shareable,
                CUmemAllocationHandleType type) {
  const Lock lock(Mutex());
  if (const CUresult met = Begin("cuMemImportFromShareableHandle"); met != CUDA_SUCCESS) return met;
  const auto given = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  const std::string target = TargetOf(given);
  const size_t name = target.find(kName);
  struct stat status {};
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || name == std::string::npos ||
      fstat(given, &status) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *handle = Add({.descriptor = fcntl(given, F_DUPFD_CLOEXEC, 0),
                 .size = static_cast<size_t>(status.st_size),
                 .device = std::atoi(target.c_str() + name + std::strlen(kName)),
                 .is_imported = true});
  return CUDA_SUCCESS;
}

CUresult Reserve(CUdeviceptr* address, size_t size, size_t alignment, CUdeviceptr wanted,
                 unsigned long long flags) {
  const Lock lock(Mutex());
  if (const CUresult met = Begin("cuMemAddressReserve"); met != CUDA_SUCCESS) return met;
  if (size == 0 || size % kGranularity != 0 || alignment != 0 || wanted != 0 || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  void* const base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<CUdeviceptr>(base);
  Virtual().reservations[*address] = {.size = size};
  return CUDA_SUCCESS;
}

CUresult FreeAddress(CUdeviceptr address, size_t size) {
  const Lock lock(Mutex());
  (void)Begin("cuMemAddressFree");
  const auto found = Virtual().reservations.find(address);
  if (found == Virtual().reservations.end() || found->second.size != size ||
      found->second.mapped != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  munmap(At(address), size);
  Virtual().reservations.erase(found);
  return CUDA_SUCCESS;
}

CUresult Map(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
  const Lock lock(Mutex());
  if (const CUresult met = Begin("cuMemMap"); met != CUDA_SUCCESS) return met;
  const auto range = Virtual().reservations.find(address);
  const auto found = Virtual().allocations.find(handle);
  if (range == Virtual().reservations.end() || found == Virtual().allocations.end() ||
      offset != 0 || flags != 0 || range->second.mapped != 0 || range->second.size != size ||
      size != found->second.size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool mapped = AddMapping({.address = At(address),
                                  .size = size,
                                  .descriptor = found->second.descriptor,
                                  .device = found->second.device,
                                  .is_imported = found->second.is_imported});
  if (!mapped) return CUDA_ERROR_OUT_OF_MEMORY;
  range->second.mapped = handle;
  ++found->second.num_mappings;
  return CUDA_SUCCESS;
}

CUresult Unmap(CUdeviceptr address, size_t size) {
  const Lock lock(Mutex());
  (void)Begin("cuMemUnmap");
  const auto range = Virtual().reservations.find(address);
  if (range == Virtual().reservations.end() || range->second.mapped == 0 ||
      range->second.size != size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  RemoveMapping(At(address));
  --Virtual().allocations.at(std::exchange(range->second.mapped, 0)).num_mappings;
  return CUDA_SUCCESS;
}

CUresult SetAccessOf(CUdeviceptr address, size_t size, const CUmemAccessDesc* access,
                     size_t count) {
  const Lock lock(Mutex());
  if (const CUresult met = Begin("cuMemSetAccess"); met != CUDA_SUCCESS) return met;
  const auto range = Virtual().reservations.find(address);
  if (range == Virtual().reservations.end() || range->second.mapped == 0 ||
      range->second.size != size || count != 1 ||
      access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = access->location.id;
  if (device != Virtual().allocations.at(range->second.mapped).device && !PeersReachEachOther()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  SetAccess(At(address), device);
  return CUDA_SUCCESS;
}

}  // namespace

bool PeersReachEachOther() {
  const char* const peers = std::getenv("EPLB_FAKE_CUDA_PEERS");
  return peers == nullptr || std::string(peers) != "off";
}

void* DriverEntryPoint(const std::string& name) {
  static const auto* const functions = new std::map<std::string, void*>{
      {"cuGetErrorName", reinterpret_cast<void*>(&ErrorName)},
      {"cuDevicePrimaryCtxGetState", reinterpret_cast<void*>(&ContextState)},
      {"cuCtxGetCurrent", reinterpret_cast<void*>(&GetContext)},
      {"cuCtxSetCurrent", reinterpret_cast<void*>(&SetContext)},
      {"cuPointerGetAttribute", reinterpret_cast<void*>(&PointerAttribute)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(&Attribute)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(&Granularity)},
      {"cuMemCreate", reinterpret_cast<void*>(&Create)},
      {"cuMemRelease", reinterpret_cast<void*>(&Release)},
      {"cuMemAddressReserve", reinterpret_cast<void*>(&Reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(&FreeAddress)},
      {"cuMemMap", reinterpret_cast<void*>(&Map)},
      {"cuMemUnmap", reinterpret_cast<void*>(&Unmap)},
      {"cuMemSetAccess", reinterpret_cast<void*>(&SetAccessOf)},
      {"cuMemExportToShareableHandle", reinterpret_cast<void*>(&Export)},
      {"cuMemImportFromShareableHandle", reinterpret_cast<void*>(&Import)}};
  const auto found = functions->find(name);
  return found == functions->end() ? nullptr : found->second;
}

}  // namespace eplb::fake_cuda
