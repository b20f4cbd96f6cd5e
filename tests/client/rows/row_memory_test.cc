#include "client/rows/row_memory.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace eplb {
namespace {

TEST(RowMemoryTest, WithoutADeviceAllMemoryIsTheHosts) {
  std::vector<std::byte> rows(64);
  const std::vector<ExpertTensor> tensors = {
      {.name = "w", .layer = LayerId{0}, .base = rows.data(), .num_rows = 1, .row_bytes = 64}};
  const auto memory = FindMemory(tensors);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_FALSE(memory->device.has_value());
  EXPECT_EQ(memory->Text(), "host memory");
  EXPECT_EQ(RowMemory{.device = 3}.Text(), "memory of device 3");
}

TEST(RowMemoryTest, RankWithoutTensorsHasTheMemoryInUse) {
  EXPECT_FALSE(FindMemory({})->device.has_value());
  const auto memory = MemoryInUse();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_NE(memory->device.has_value(), !memory->no_device.empty());
}

}  // namespace
}  // namespace eplb
