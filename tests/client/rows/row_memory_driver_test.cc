// Tensors of a GPU that our own CUDA runtime cannot use, because the driver is too old for it or
// the build has no CUDA: the stand-in for a driver says whose memory they are.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/rows/row_memory.h"
#include "cuda/driver_memory.h"

namespace eplb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RowMemoryDriverTest : public ::testing::Test {
 protected:
  // The framework of this process has loaded its driver.
  void SetUp() override {
    ASSERT_NE(dlopen(EPLB_FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  }
  void TearDown() override { unsetenv("EPLB_FAKE_GPU_MEMORY"); }

  static ExpertTensor TensorAt(void* base) {
    return {.name = "w", .layer = LayerId{0}, .base = base, .num_rows = 1, .row_bytes = 64};
  }

  std::vector<std::byte> host_ = std::vector<std::byte>(64);
  std::vector<std::byte> gpu_ = std::vector<std::byte>(4096);
};

TEST_F(RowMemoryDriverTest, MemoryOfAGpuThatCannotBeUsedIsRefusedByName) {
  setenv("EPLB_FAKE_GPU_MEMORY", std::to_string(reinterpret_cast<uintptr_t>(gpu_.data())).c_str(),
         1);
  EXPECT_TRUE(cuda::IsGpuMemory(gpu_.data()));
  EXPECT_FALSE(cuda::IsGpuMemory(host_.data()));
  const std::vector<ExpertTensor> tensors = {TensorAt(host_.data()), TensorAt(gpu_.data() + 128)};
  const absl::Status status = FindMemory(tensors).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("tensor \"w\" is in the memory of a GPU that cannot be used here"),
                    HasSubstr("docs/transports.md")));
}

TEST_F(RowMemoryDriverTest, HostMemoryBesideAGpuThatCannotBeUsedIsTheHosts) {
  const std::vector<ExpertTensor> tensors = {TensorAt(host_.data())};
  const auto memory = FindMemory(tensors);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_FALSE(memory->device.has_value());
  EXPECT_NE(memory->no_device, "");
}

}  // namespace
}  // namespace eplb
