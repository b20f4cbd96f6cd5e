#include "cuda/driver_memory.h"

#include <dlfcn.h>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb::cuda {
namespace {

constexpr char kFileName[] = "libcuda.so.1";

// Values of cuda.h, which a build without CUDA does not have.
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;          // memory that the driver does not know
constexpr int kNotInitialized = 3;        // so no thread of this process has memory of a GPU
constexpr int kMemoryType = 2;            // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int kIsManaged = 8;             // CU_POINTER_ATTRIBUTE_IS_MANAGED
constexpr int kDeviceOrdinal = 9;         // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr unsigned int kDeviceType = 2;   // CU_MEMORYTYPE_DEVICE
constexpr unsigned int kUnifiedType = 4;  // CU_MEMORYTYPE_UNIFIED

struct Pointer {
  PointerGetAttribute get = nullptr;
  const void* memory = nullptr;
};

// Nothing where the driver does not know the memory.
template <class Value>
absl::StatusOr<std::optional<Value>> Ask(const Pointer& pointer, int attribute) {
  Value value{};
  const int error = pointer.get(&value, attribute, reinterpret_cast<uintptr_t>(pointer.memory));
  if (error == kSuccess) return value;
  if (error == kInvalidValue || error == kNotInitialized) return std::optional<Value>();
  return Internal("cuPointerGetAttribute ", attribute, ": error ", error, " of the driver");
}

}  // namespace

absl::StatusOr<std::optional<GpuMemory>> FindGpuMemory(PointerGetAttribute get,
                                                       const void* memory) {
  const Pointer pointer{.get = get, .memory = memory};
  EPLB_ASSIGN_OR_RETURN(const std::optional<unsigned int> type,
                        Ask<unsigned int>(pointer, kMemoryType));
  if (type != kDeviceType && type != kUnifiedType) return std::optional<GpuMemory>();
  EPLB_ASSIGN_OR_RETURN(const std::optional<int> device, Ask<int>(pointer, kDeviceOrdinal));
  EPLB_ASSIGN_OR_RETURN(const std::optional<int> is_managed, Ask<int>(pointer, kIsManaged));
  return GpuMemory{.device = device.value_or(0), .is_managed = is_managed.value_or(0) != 0};
}

bool IsGpuMemory(const void* memory) {
  void* const driver = dlopen(kFileName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (driver == nullptr) return false;  // then no thread of this process has memory of a GPU
  const auto get = reinterpret_cast<PointerGetAttribute>(dlsym(driver, "cuPointerGetAttribute"));
  bool is_gpus = false;
  if (get != nullptr) {
    const auto found = FindGpuMemory(get, memory);
    is_gpus = found.ok() && found->has_value();
  }
  (void)dlclose(driver);  // only the count of this dlopen
  return is_gpus;
}

bool DriverIsInstalled() {
  void* const driver = dlopen(kFileName, RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  (void)dlclose(driver);
  return true;
}

}  // namespace eplb::cuda
