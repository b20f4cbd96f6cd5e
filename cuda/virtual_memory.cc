#include "cuda/virtual_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/runtime.h"

namespace eplb::cuda {
namespace {

struct Driver {
  decltype(&cuGetErrorName) GetErrorName;
  decltype(&cuDeviceGetAttribute) DeviceGetAttribute;
  decltype(&cuMemGetAllocationGranularity) MemGetAllocationGranularity;
  decltype(&cuMemCreate) MemCreate;
  decltype(&cuMemRelease) MemRelease;
  decltype(&cuMemAddressReserve) MemAddressReserve;
  decltype(&cuMemAddressFree) MemAddressFree;
  decltype(&cuMemMap) MemMap;
  decltype(&cuMemUnmap) MemUnmap;
  decltype(&cuMemSetAccess) MemSetAccess;
  decltype(&cuMemExportToShareableHandle) MemExportToShareableHandle;
  decltype(&cuMemImportFromShareableHandle) MemImportFromShareableHandle;
};

template <class Function>
absl::Status Find(const char* name, Function& function) {
  function = reinterpret_cast<Function>(FindInDriver(name));
  if (function != nullptr) return absl::OkStatus();
  return FailedPrecondition("the CUDA driver has no ", name);
}

absl::StatusOr<Driver> FindDriver() {
  Driver driver{};
  EPLB_RETURN_IF_ERROR(Find("cuGetErrorName", driver.GetErrorName));
  EPLB_RETURN_IF_ERROR(Find("cuDeviceGetAttribute", driver.DeviceGetAttribute));
  EPLB_RETURN_IF_ERROR(Find("cuMemGetAllocationGranularity", driver.MemGetAllocationGranularity));
  EPLB_RETURN_IF_ERROR(Find("cuMemCreate", driver.MemCreate));
  EPLB_RETURN_IF_ERROR(Find("cuMemRelease", driver.MemRelease));
  EPLB_RETURN_IF_ERROR(Find("cuMemAddressReserve", driver.MemAddressReserve));
  EPLB_RETURN_IF_ERROR(Find("cuMemAddressFree", driver.MemAddressFree));
  EPLB_RETURN_IF_ERROR(Find("cuMemMap", driver.MemMap));
  EPLB_RETURN_IF_ERROR(Find("cuMemUnmap", driver.MemUnmap));
  EPLB_RETURN_IF_ERROR(Find("cuMemSetAccess", driver.MemSetAccess));
  EPLB_RETURN_IF_ERROR(Find("cuMemExportToShareableHandle", driver.MemExportToShareableHandle));
  EPLB_RETURN_IF_ERROR(Find("cuMemImportFromShareableHandle", driver.MemImportFromShareableHandle));
  return driver;
}

const absl::StatusOr<Driver>& TheDriver() {
  static const absl::StatusOr<Driver> driver = FindDriver();
  return driver;
}

absl::Status Check(const Driver& driver, CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  (void)driver.GetErrorName(result, &name);
  const std::string text =
      absl::StrCat(what, ": ", name == nullptr ? "unknown error" : name, " (", int{result}, ")");
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return ResourceExhausted(text);
  const bool cannot = result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED ||
                      result == CUDA_ERROR_INVALID_DEVICE;
  return cannot ? FailedPrecondition(text) : Internal(text);
}

CUmemAllocationProp PropertiesOf(const Driver& driver, int32_t device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  int network = 0;
  constexpr auto kNetwork = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
  const bool known = driver.DeviceGetAttribute(&network, kNetwork, device) == CUDA_SUCCESS;
  properties.allocFlags.gpuDirectRDMACapable = known && network != 0 ? 1 : 0;
  return properties;
}

absl::StatusOr<size_t> GranularityOf(const Driver& driver, int32_t device) {
  const CUmemAllocationProp properties = PropertiesOf(driver, device);
  size_t granularity = 0;
  EPLB_RETURN_IF_ERROR(Check(driver,
                             driver.MemGetAllocationGranularity(
                                 &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                             "cuMemGetAllocationGranularity"));
  return std::max<size_t>(granularity, 1);
}

}  // namespace

absl::StatusOr<VirtualMemory> VirtualMemory::Make(int32_t device, int64_t num_bytes) {
  EPLB_ASSIGN_OR_RETURN(const Driver driver, TheDriver());
  EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(device));
  int can_export = 0;
  EPLB_RETURN_IF_ERROR(Check(
      driver,
      driver.DeviceGetAttribute(
          &can_export, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device),
      "cuDeviceGetAttribute"));
  if (can_export == 0) {
    return FailedPrecondition("device ", device, " does not hand memory over as a descriptor");
  }
  EPLB_ASSIGN_OR_RETURN(const size_t granularity, GranularityOf(driver, device));
  const size_t wanted = std::max<size_t>(static_cast<size_t>(num_bytes), 1);
  const size_t size = (wanted + granularity - 1) / granularity * granularity;
  const CUmemAllocationProp properties = PropertiesOf(driver, device);
  VirtualMemory memory;
  memory.network_reaches_ = properties.allocFlags.gpuDirectRDMACapable != 0;
  CUmemGenericAllocationHandle handle = 0;
  EPLB_RETURN_IF_ERROR(
      Check(driver, driver.MemCreate(&handle, size, &properties, 0), "cuMemCreate"));
  memory.handle_ = handle;
  EPLB_RETURN_IF_ERROR(memory.MapFor(device, num_bytes, granularity));
  return memory;
}

absl::StatusOr<VirtualMemory> VirtualMemory::Import(int32_t device, int descriptor,
                                                    int64_t num_bytes) {
  EPLB_ASSIGN_OR_RETURN(const Driver driver, TheDriver());
  EPLB_ASSIGN_OR_RETURN(const DeviceGuard guard, DeviceGuard::Make(device));
  VirtualMemory memory;
  CUmemGenericAllocationHandle handle = 0;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes descriptors so
  auto* const shareable = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  EPLB_RETURN_IF_ERROR(Check(driver,
                             driver.MemImportFromShareableHandle(
                                 &handle, shareable, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                             "cuMemImportFromShareableHandle"));
  memory.handle_ = handle;
  EPLB_ASSIGN_OR_RETURN(const size_t granularity, GranularityOf(driver, device));
  EPLB_RETURN_IF_ERROR(memory.MapFor(device, num_bytes, granularity));
  return memory;
}

absl::Status VirtualMemory::MapFor(int32_t device, int64_t num_bytes, size_t granularity) {
  EPLB_ASSIGN_OR_RETURN(const Driver driver, TheDriver());
  const size_t wanted = std::max<size_t>(static_cast<size_t>(num_bytes), 1);
  const size_t size = (wanted + granularity - 1) / granularity * granularity;
  CUdeviceptr base = 0;
  EPLB_RETURN_IF_ERROR(
      Check(driver, driver.MemAddressReserve(&base, size, 0, 0, 0), "cuMemAddressReserve"));
  if (absl::Status mapped = Check(driver, driver.MemMap(base, size, 0, handle_, 0), "cuMemMap");
      !mapped.ok()) {
    (void)driver.MemAddressFree(base, size);
    return mapped;
  }
  base_ = reinterpret_cast<std::byte*>(base);  // NOLINT(performance-no-int-to-ptr): as above
  num_bytes_ = static_cast<size_t>(num_bytes);
  mapped_bytes_ = size;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return Check(driver, driver.MemSetAccess(base, size, &access, 1), "cuMemSetAccess");
}

absl::StatusOr<int> VirtualMemory::Export() const {
  EPLB_ASSIGN_OR_RETURN(const Driver driver, TheDriver());
  int descriptor = -1;
  EPLB_RETURN_IF_ERROR(Check(driver,
                             driver.MemExportToShareableHandle(
                                 &descriptor, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                             "cuMemExportToShareableHandle"));
  return descriptor;
}

VirtualMemory::VirtualMemory(VirtualMemory&& other) noexcept
    : network_reaches_(other.network_reaches_),
      base_(std::exchange(other.base_, nullptr)),
      num_bytes_(std::exchange(other.num_bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      handle_(std::exchange(other.handle_, 0)) {}

VirtualMemory& VirtualMemory::operator=(VirtualMemory&& other) noexcept {
  std::swap(network_reaches_, other.network_reaches_);
  std::swap(base_, other.base_);
  std::swap(num_bytes_, other.num_bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(handle_, other.handle_);
  return *this;
}

VirtualMemory::~VirtualMemory() {
  if (handle_ == 0) return;
  const Driver& driver = *TheDriver();  // found: there is a handle
  if (mapped_bytes_ > 0) {
    const auto base = reinterpret_cast<CUdeviceptr>(base_);
    (void)driver.MemUnmap(base, mapped_bytes_);
    (void)driver.MemAddressFree(base, mapped_bytes_);
  }
  (void)driver.MemRelease(handle_);
}

}  // namespace eplb::cuda
