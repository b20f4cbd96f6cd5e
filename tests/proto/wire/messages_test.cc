#include "proto/wire/messages.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <type_traits>

#include "base/foreign_text.h"
#include "proto/wire/convert.h"
#include "proto/wire/names.h"

#include "eplb/v1/session.pb.h"

namespace eplb::wire {

namespace {

// Shapes with the most slots that take most bytes: one layer has the largest numbers,
// and the most layers have the most lengths and tags.
const TopologyOptions kShapes[] = {{.num_layers = 1,
                                    .num_experts = kMaxSlotsOfAllLayers,
                                    .num_slots = kMaxSlotsOfAllLayers,
                                    .num_gpus = 1},
                                   {.num_layers = kMaxLayers,
                                    .num_experts = kMaxSlotsOfAllLayers / kMaxLayers,
                                    .num_slots = kMaxSlotsOfAllLayers / kMaxLayers,
                                    .num_gpus = 1}};

template <class Message>
int64_t SizeOf(const Message& message) {
  std::conditional_t<std::is_constructible_v<UpMessage, Message>, v1::Up, v1::Down> out;
  ToProto(message, &out);
  return static_cast<int64_t>(out.ByteSizeLong());
}

TEST(LimitsTest, AProposalOfAllLayersFitsAndSoDoesThePlacement) {
  for (const TopologyOptions& shape : kShapes) {
    const Placement placement = Placement::Static(*Topology::Make(shape));
    Propose propose{.reason = std::string(2048, 'x')};
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      propose.layers.push_back(placement.Layer(LayerId{layer}));
    }
    EXPECT_LE(SizeOf(propose), kMaxMessageBytes) << shape.num_layers;
    EXPECT_LE(SizeOf(PlacementBody{.placement = placement}), kMaxMessageBytes) << shape.num_layers;
  }
}

TEST(LimitsTest, AReportOfTheWidestCountsFits) {
  LoadReport report;
  report.counts =
      LoadMatrix::Constant(kMaxLayers, kMaxSlotsOfAllLayers / kMaxLayers, int64_t{1} << 62);
  report.split_tokens.assign(kMaxLayers, std::numeric_limits<int64_t>::max());
  report.split_peaks = report.split_tokens;
  report.split_peaks_static = report.split_tokens;
  report.split_peaks_without_eplb = report.split_tokens;
  EXPECT_LE(SizeOf(report), kMaxMessageBytes);
  EXPECT_GE(SizeOf(report), kMaxReportBytes);
}

TEST(LimitsTest, AHelloThatNamesEveryModelLayerFits) {
  Hello hello;
  hello.model_layers.assign(kMaxLayers, (1 << 30));
  EXPECT_LE(SizeOf(hello), kMaxRestBytes);
}

TEST(LayerListTest, CopiesShareUntilOneIsChanged) {
  const LayerPlacement layer =
      Placement::Static(*Topology::Make({.num_layers = 2, .num_experts = 3, .num_slots = 4}))
          .Layer(LayerId{1});
  LayerList first = {layer};
  LayerList second = first;
  EXPECT_TRUE(second.SharesWith(first));
  second.push_back(layer);
  EXPECT_FALSE(second.SharesWith(first));
  EXPECT_EQ(first.size(), 1u);
  EXPECT_EQ(second.size(), 2u);
  second.front().replica_rank[0] = 9;
  EXPECT_EQ(first.front(), layer);
  EXPECT_NE(first, second);
  EXPECT_FALSE(LayerList().SharesWith(LayerList()));
  EXPECT_EQ(LayerList(), LayerList());
}

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Every text as long as it may be, every number as large.
JobMemory Largest() {
  JobMemory memory{
      .term = kMost,
      .serial = kMost,
      .run_number = kMost,
      .run_id = std::string(kMaxNameLength, 'i'),
      .paused = true,
      .pause_reason = std::string(kMaxText, 'p'),
      .settings = {{"name", "incremental"},
                   {"mode", "observe"},
                   {"every_steps", std::numeric_limits<int32_t>::max()},
                   {"min_gain", 0.3},
                   {"horizon_steps", kMost},
                   {"freeze_steps", std::string(39, '9')},
                   {"max_pause", absl::Hours(1)},
                   {"layers_per_chunk", std::numeric_limits<int32_t>::max()}},
      .quarantine = std::string(kMaxText, 'q'),
      .last_decision_step = kMost,
      .back_off_length = std::numeric_limits<int32_t>::max(),
      .back_off_to_skip = std::numeric_limits<int32_t>::max(),
      .account_windows = kMost,
      .account_saved_peak_tokens = 1e300,
      .account_pause_seconds = 1e300,
      .report_seconds = 1e300,
      .gap_seconds = 1e300,
      .next_version = kMost,
      .paused_by_lost_store = true,
      .saved = {.earlier_seconds = -1e300, .windows = kMost, .seconds_seconds = 1e300}};
  for (size_t run = 0; run < kMaxEndedRuns; ++run) {
    memory.gone.push_back({std::string(kMaxNameLength, 'g'), kMost});
  }
  return memory;
}

// A longer one would be written and not read again, and the store would count as damaged.
TEST(JobMemoryTest, TheLargestIsReadAsItWasWritten) {
  const std::string bytes = MemoryBytes(Largest());
  EXPECT_LE(bytes.size(), kMaxMemoryBytes / 2);
  const auto read = MemoryFromBytes(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Largest());
}

TEST(JobMemoryTest, LongReasonsAreCutWhereTheyAreWritten) {
  JobMemory memory = Largest();
  memory.pause_reason = std::string(size_t{1} << 20, 'p');
  memory.quarantine = std::string(size_t{1} << 20, 'q');
  const auto read = MemoryFromBytes(MemoryBytes(memory));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->pause_reason.size(), kMaxText);
  EXPECT_EQ(read->quarantine.size(), kMaxText);
}

TEST(JobMemoryTest, AGainThatIsNoNumberIsRefused) {
  const auto read = MemoryFromBytes(
      MemoryBytes({.settings = {{"min_gain", std::numeric_limits<double>::quiet_NaN()}}}));
  EXPECT_EQ(read.status().message(), "min_gain is not finite");
}

TEST(JobMemoryTest, APauseOfManyYearsIsRefused) {
  const auto read =
      MemoryFromBytes(MemoryBytes({.settings = {{"max_pause", absl::Hours(24 * 365 * 200)}}}));
  EXPECT_EQ(read.status().message(), "max_pause_seconds is out of range");
}

}  // namespace

}  // namespace eplb::wire
