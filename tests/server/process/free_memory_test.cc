#include "server/process/free_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/process/process_figures.h"

namespace eplb {
namespace {

TEST(FreeMemoryTest, WhatWasFreedBetweenBlocksInUseIsReturnedOnceItIsMuch) {
  constexpr int64_t kBlock =
      32768;  // below the size from which the C library maps each block alone
  constexpr int64_t kBlocks = 4096;
  std::vector<std::unique_ptr<char[]>> blocks;
  for (int64_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(std::make_unique<char[]>(kBlock));  // touched: zeroed
  }
  FreeMemory memory;
  EXPECT_FALSE(memory.Note(kBlocks * kBlock));
  const int64_t before = ReadProcessFigures().resident_bytes;
  for (int64_t i = 0; i + 1 < kBlocks; ++i) blocks[static_cast<size_t>(i)].reset();
  EXPECT_FALSE(memory.Note(kBlocks * kBlock - FreeMemory::kWorthwhile + 1));
  EXPECT_TRUE(memory.Note(kBlock));
  EXPECT_LT(ReadProcessFigures().resident_bytes, before - kBlocks * kBlock / 2);
  EXPECT_FALSE(memory.Note(0));
}

}  // namespace
}  // namespace eplb
