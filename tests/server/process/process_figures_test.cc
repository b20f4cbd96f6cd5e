#include "server/process/process_figures.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

TEST(ProcessFiguresTest, TheProcessIsAlive) {
  const ProcessFigures figures = ReadProcessFigures();
  EXPECT_GT(figures.resident_bytes, 1 << 20);
  EXPECT_GT(figures.open_descriptors, 2);
  EXPECT_GE(figures.max_descriptors, figures.open_descriptors);
  EXPECT_GE(figures.threads, 1);
  EXPECT_GT(figures.cpu_seconds, 0);
  EXPECT_GT(figures.start_unix_seconds, 1'500'000'000);
}

}  // namespace
}  // namespace eplb
