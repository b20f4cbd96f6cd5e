#include "cuda/driver_memory.h"

#include <dlfcn.h>

#include <cstdint>

namespace eplb::cuda {
namespace {

constexpr char kFileName[] = "libcuda.so.1";

// As in cuda.h, which a build without CUDA does not have.
using PointerGetAttribute = int (*)(void* value, int attribute, uint64_t pointer);
constexpr int kSuccess = 0;
constexpr int kMemoryType = 2;            // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned int kDeviceType = 2;   // CU_MEMORYTYPE_DEVICE
constexpr unsigned int kUnifiedType = 4;  // CU_MEMORYTYPE_UNIFIED

}  // namespace

bool IsGpuMemory(const void* memory) {
  void* const driver = dlopen(kFileName, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (driver == nullptr) return false;  // then nobody in this process has memory of a GPU
  const auto get = reinterpret_cast<PointerGetAttribute>(dlsym(driver, "cuPointerGetAttribute"));
  unsigned int type = 0;
  const bool known =
      get != nullptr && get(&type, kMemoryType, reinterpret_cast<uintptr_t>(memory)) == kSuccess;
  (void)dlclose(driver);  // only the count of this dlopen
  return known && (type == kDeviceType || type == kUnifiedType);
}

bool DriverIsInstalled() {
  void* const driver = dlopen(kFileName, RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return false;
  (void)dlclose(driver);
  return true;
}

}  // namespace eplb::cuda
