#include "server/core/state/report_check.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

TEST(ReportCheckTest, AReportOfAnotherShapeOrBelowZeroIsRefusedByName) {
  const Topology topology = Topology::Make(TestShape()).value();
  EXPECT_TRUE(CheckReport(TestReport(0, 9), topology).ok());
  wire::LoadReport report = TestReport(0, 9);
  report.counts(1, 2) = -7;
  EXPECT_EQ(CheckReport(report, topology).message(), "load report: a count is -7, it must be >= 0");
  report.counts = LoadMatrix::Zero(4, 5);
  EXPECT_EQ(CheckReport(report, topology).message(),
            "load report: counts are 4 layers x 5 experts, the job has 4 x 6");
  EXPECT_FALSE(CheckReport(TestReport(9, 0), topology).ok());
  EXPECT_FALSE(CheckReport(TestReport(-1, 9), topology).ok());
}

wire::LoadReport OfThreePlacements() {
  wire::LoadReport report = TestReport(0, 9);
  report.version = 7;
  report.earlier = {{.last_step = 3, .version = 4, .counts = LoadMatrix::Constant(4, 6, 4)},
                    {.last_step = 5, .version = 5, .counts = LoadMatrix::Constant(4, 6, 6)}};
  return report;
}

TEST(ReportCheckTest, PartsInOrderAndWithinTheWindowAreTaken) {
  const Topology topology = Topology::Make(TestShape()).value();
  EXPECT_TRUE(CheckReport(OfThreePlacements(), topology).ok()) << "10 tokens in all of 10";
}

TEST(ReportCheckTest, PartsThatCannotBeAreRefusedByName) {
  const Topology topology = Topology::Make(TestShape()).value();
  const auto error = [&topology](const wire::LoadReport& report) {
    return std::string(CheckReport(report, topology).message());
  };
  wire::LoadReport report = OfThreePlacements();
  report.earlier[1].last_step = 3;
  EXPECT_EQ(error(report), "load report: earlier part 1 ends with step 3, expected 4..8");
  report.earlier[1].last_step = 9;
  EXPECT_EQ(error(report), "load report: earlier part 1 ends with step 9, expected 4..8");
  report = OfThreePlacements();
  report.earlier[1].version = 7;
  EXPECT_EQ(error(report), "load report: earlier part 1 has version 7, expected 5..6");
  report = OfThreePlacements();
  report.earlier[0].counts(2, 5) = 5;
  EXPECT_EQ(error(report),
            "load report: earlier part 1: a count of the parts up to it is above the whole "
            "window's");
  report.earlier[0].counts(2, 5) = -1;
  EXPECT_EQ(error(report), "load report: earlier part 0: a count is -1, it must be >= 0");
  report.earlier[0].counts = LoadMatrix::Zero(1, 1);
  EXPECT_EQ(error(report), "load report: earlier part 0 has another shape than its report");
  report = OfThreePlacements();
  report.earlier[0].counts(0, 0) = std::numeric_limits<int64_t>::max();
  report.earlier[1].counts(0, 0) = std::numeric_limits<int64_t>::max();
  EXPECT_FALSE(CheckReport(report, topology).ok()) << "and nothing overflows";
  report = OfThreePlacements();
  report.parts_unknown = true;
  EXPECT_EQ(error(report), "load report: 2 earlier parts, expected 0..0");
  report.earlier.resize(wire::kMaxLoadParts + 1);
  report.parts_unknown = false;
  EXPECT_EQ(error(report), "load report: 33 earlier parts, expected 0..32");
}

TEST(ReportCheckTest, WhatNoSplitCanGiveIsRefusedByLayer) {
  const Topology topology = Topology::Make(TestShape()).value();
  const auto error = [&topology](const wire::LoadReport& report) {
    return std::string(CheckReport(report, topology).message());
  };
  EXPECT_EQ(error(TestSplitReport(720, 240)), "");
  EXPECT_EQ(error(TestSplitReport(721, 240)),
            "load report: splits of layer 0: 721 tokens, of which the fullest of 3 GPUs has 240");
  EXPECT_NE(error(TestSplitReport(720, 721)), "");
  EXPECT_NE(error(TestSplitReport(-1, 0)), "");
  wire::LoadReport other = TestSplitReport(720, 240);
  other.split_peaks_without_eplb[2] = 721;
  EXPECT_EQ(error(other),
            "load report: splits of layer 2: 720 tokens, of which the fullest of 3 GPUs has 721");
  other.split_peaks_without_eplb.clear();
  EXPECT_EQ(error(other),
            "load report: fullest GPUs of 4 layers as split, of 4 under the static layout and of 0 "
            "without EPLB");
  other.split_peaks_static.clear();
  EXPECT_EQ(error(other), "") << "of an older library";
  other.split_peaks.pop_back();
  EXPECT_EQ(error(other),
            "load report: splits of 4 layers with the fullest GPUs of 3, the job has 4 layers");
}

}  // namespace
}  // namespace eplb::core
