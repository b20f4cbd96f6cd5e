// With the stand-in for a driver in the place of the one that a training framework loads.
#include "cuda/driver_memory.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace eplb::cuda {
namespace {

// In their order: a driver that is loaded stays.
TEST(DriverMemoryTest, WithoutALoadedDriverNothingIsTheGpus) {
  const std::vector<std::byte> memory(64);
  EXPECT_FALSE(IsGpuMemory(memory.data()));
  EXPECT_FALSE(IsGpuMemory(nullptr));
}

TEST(DriverMemoryTest, TheLoadedDriverSaysWhatIsTheGpus) {
  ASSERT_NE(dlopen(EPLB_FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  const std::vector<std::byte> host(64);
  const std::vector<std::byte> gpu(4096);
  setenv("EPLB_FAKE_GPU_MEMORY", std::to_string(reinterpret_cast<uintptr_t>(gpu.data())).c_str(),
         1);
  EXPECT_TRUE(IsGpuMemory(gpu.data()));
  EXPECT_TRUE(IsGpuMemory(gpu.data() + 128));
  EXPECT_FALSE(IsGpuMemory(host.data()));
  unsetenv("EPLB_FAKE_GPU_MEMORY");
  EXPECT_FALSE(IsGpuMemory(gpu.data()));
  EXPECT_TRUE(DriverIsInstalled());
}

}  // namespace
}  // namespace eplb::cuda
