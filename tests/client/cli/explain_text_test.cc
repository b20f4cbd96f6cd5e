#include "client/cli/explain_text.h"

#include <gtest/gtest.h>

namespace eplb::cli {

namespace {

TEST(TransferTextTest, ATransferIsItsExpertAndTwoGpus) {
  EXPECT_EQ(TransferText({.expert = ExpertId{12}, .source = GpuId{0}, .destination = GpuId{3}}),
            "12 (GPU 0 -> 3)");
}

TEST(TransferTextTest, OnlyTransfersThatAreNotShownAreCounted) {
  EXPECT_EQ(MoreTransfersText(0), "");
  EXPECT_EQ(MoreTransfersText(kTransfersShown), "");
  EXPECT_EQ(MoreTransfersText(kTransfersShown + 1), "and 1 more (-o json lists all)");
  EXPECT_EQ(MoreTransfersText(kTransfersShown + 1234), "and 1,234 more (-o json lists all)");
}

}  // namespace

}  // namespace eplb::cli
