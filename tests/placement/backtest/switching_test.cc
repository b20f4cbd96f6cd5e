#include "placement/backtest/switching.h"

#include <gtest/gtest.h>

#include <initializer_list>

#include "placement/split/batch_split.h"

namespace eplb {
namespace {

// Two layers of four experts on two GPUs. Experts 0 and 1 of a layer have most of its tokens, so
// that a layer in order has GPU loads {10, 2} and one that is mixed {6, 6}.
Placement Layers(std::initializer_list<bool> mixed) {
  const Topology topology = Topology::Make({.num_layers = static_cast<int32_t>(mixed.size()),
                                            .num_experts = 4,
                                            .num_slots = 4,
                                            .num_gpus = 2})
                                .value();
  IndexMatrix slots(std::ssize(mixed), 4);
  Eigen::Index layer = 0;
  for (const bool one : mixed) slots.row(layer++) << 0, one ? 2 : 1, one ? 1 : 2, 3;
  return Placement::FromSlots(topology, slots).value();
}

constexpr double kEven = 1;
constexpr double kUneven = 0.6;

absl::StatusOr<Evaluation> Figures(const Placement& placement) {
  LoadMatrix counts(placement.topology().num_layers(), 4);
  for (Eigen::Index layer = 0; layer < counts.rows(); ++layer) counts.row(layer) << 5, 5, 1, 1;
  return Evaluate(Load::FromCounts(counts).value(), placement);
}

// Moves an expert of one byte into each GPU of a changed layer; the second layer gains most.
Change ChangeTo(const Placement& target) {
  return {.target = target, .falls = {1, 4}, .expert = {.weight_bytes = 1}, .seconds = 8};
}

std::vector<std::optional<double>> Seen(Switching& placement, int64_t first, int64_t steps = 10) {
  return placement.Pass(first, steps, Figures).value().seen.balancedness;
}

using Each = std::vector<std::optional<double>>;

TEST(SwitchingTest, WithoutATimeTheNextWindowRunsUnderTheTarget) {
  Switching placement(Layers({false, false}), 2);
  EXPECT_EQ(Seen(placement, 0), (Each{kUneven, kUneven}));
  ASSERT_TRUE(placement.Begin(ChangeTo(Layers({true, true})), {}, 10).ok());
  EXPECT_EQ(placement.running(), Layers({false, false}));
  const SwitchedWindow window = placement.Pass(10, 10, Figures).value();
  EXPECT_EQ(window.seen.balancedness, (Each{kEven, kEven}));
  EXPECT_EQ(window.seconds, 8);
  EXPECT_TRUE(placement.done());
  EXPECT_EQ(placement.running(), Layers({true, true}));
}

TEST(SwitchingTest, ALayerCountsForTheOldPlacementUntilItsChunkIsInForce) {
  Switching placement(Layers({false, false}), 2);
  // The ranks hold the proposal at step 11 and vote after steps 11 and 12.
  const SwitchTime time{.decide_steps = 0.4, .vote_every = 4, .layers_per_chunk = 1};
  ASSERT_TRUE(placement.Begin(ChangeTo(Layers({true, true})), time, 10).ok());
  EXPECT_EQ(placement.num_chunks(), 2);
  EXPECT_EQ(placement.done_at(), 13);
  const SwitchedWindow window = placement.Pass(10, 10, Figures).value();
  EXPECT_DOUBLE_EQ(*window.seen.balancedness[1], 0.2 * kUneven + 0.8 * kEven);
  EXPECT_DOUBLE_EQ(*window.seen.balancedness[0], 0.3 * kUneven + 0.7 * kEven);
  EXPECT_DOUBLE_EQ(window.seen.max_gpu_load[0], 0.3 * 10 + 0.7 * 6);
  EXPECT_DOUBLE_EQ(window.seen.peak_load, 0.5 * 10 + 1.5 * 6);
  EXPECT_DOUBLE_EQ(*window.seen.mean_balancedness, 0.25 * kUneven + 0.75 * kEven);
  EXPECT_EQ(Seen(placement, 20), (Each{kEven, kEven}));
}

TEST(SwitchingTest, AChunkHoldsWhatStagingAndPauseAllow) {
  const auto done_at = [](const SwitchTime& time) {
    Switching placement(Layers({false, false}), 2);
    EXPECT_TRUE(placement.Begin(ChangeTo(Layers({true, true})), time, 0).ok());
    return placement.done_at();
  };
  EXPECT_EQ(done_at({.rows_per_chunk = 2}), 0);
  EXPECT_EQ(done_at({.rows_per_chunk = 1}), 1);
  EXPECT_EQ(done_at({.max_pause_seconds = 2, .seconds_per_byte = 1}), 0);
  EXPECT_EQ(done_at({.chunk_steps = 3, .max_pause_seconds = 1.5, .seconds_per_byte = 1}), 3);
  EXPECT_EQ(done_at({.max_pause_seconds = 0.4, .seconds_per_byte = 1}), 1) << "a row is not cut";
}

TEST(SwitchingTest, ANewerDecisionReplacesWhatIsInNoChunkYet) {
  Switching placement(Layers({false, false}), 2);
  const SwitchTime time{.decide_steps = 1, .chunk_steps = 4, .layers_per_chunk = 1};
  ASSERT_TRUE(placement.Begin(ChangeTo(Layers({true, true})), time, 0).ok());
  EXPECT_EQ(placement.done_at(), 5);
  const MovedRows none = placement.Interrupt(time, 1).value();  // layer 1 is in flight until step 1
  EXPECT_EQ(none.transfers, 2) << "layer 0";
  EXPECT_EQ(none.bytes, 2);
  EXPECT_EQ(none.seconds, 4);
  EXPECT_EQ(none.chunks, 1);
  EXPECT_EQ(placement.target(), Layers({false, true}));
  ASSERT_TRUE(placement.Begin(ChangeTo(Layers({true, false})), time, 1).ok());
  EXPECT_EQ(placement.done_at(), 6) << "layer 1 is back at step 2";
  EXPECT_DOUBLE_EQ(*Seen(placement, 0)[1], 0.9 * kUneven + 0.1 * kEven) << "even in step 1";
  EXPECT_EQ(Seen(placement, 10), (Each{kEven, kUneven}));
  EXPECT_EQ(placement.Interrupt(time, 20)->transfers, 0);
}

TEST(SwitchingTest, AProposalFollowsTheChunkInFlight) {
  Switching placement(Layers({false, false}), 2);
  const SwitchTime time{.vote_every = 3, .chunk_steps = 4, .layers_per_chunk = 1};
  ASSERT_TRUE(placement.Begin(ChangeTo(Layers({true, true})), time, 0).ok());
  EXPECT_EQ(placement.Interrupt(time, 1)->transfers, 0) << "layer 0 is in flight until step 4";
  ASSERT_TRUE(placement.Begin(ChangeTo(Layers({true, false})), time, 1).ok());
  EXPECT_EQ(placement.done_at(), 8) << "no multiple of vote_every";
}

TEST(SwitchingTest, AfterTheStartTheRanksVoteSoonAfterAWindow) {
  const auto begins_at = [](double decide_steps, int64_t step) {
    Switching placement(Layers({false, false}), 2);
    const SwitchTime time{.decide_steps = decide_steps, .vote_every = 8, .active_steps = 32};
    EXPECT_TRUE(placement.Begin(ChangeTo(Layers({true, true})), time, step).ok());
    return placement.begins_at();
  };
  EXPECT_EQ(begins_at(1, 10), 11);
  EXPECT_EQ(begins_at(2, 10), 12);
  EXPECT_EQ(begins_at(3, 10), 14) << "votes are 1, 2, 4, .. steps after the window";
  EXPECT_EQ(begins_at(9, 10), 26);
  EXPECT_EQ(begins_at(17, 10), 34) << "no longer than vote_every";
  EXPECT_EQ(begins_at(1, 30), 31);
  EXPECT_EQ(begins_at(1, 33), 40) << "idle";
}

TEST(SwitchingTest, ALayerStandsForSeveralOfTheModel) {
  Switching placement(Layers({false, false}), 8);
  const SwitchTime time{.layers_per_chunk = 1};
  ASSERT_TRUE(placement.Begin(ChangeTo(Layers({true, true})), time, 0).ok());
  EXPECT_EQ(placement.num_chunks(), 8);
  EXPECT_EQ(placement.begins_at(), 0);
  const SwitchedWindow window = placement.Pass(0, 4, Figures).value();
  EXPECT_DOUBLE_EQ(*window.seen.balancedness[1], 0.375 * kUneven + 0.625 * kEven);
  EXPECT_EQ(window.seen.balancedness[0], kUneven);
  EXPECT_EQ(window.seconds, 4) << "half of the layers";
  EXPECT_EQ(placement.num_chunks_due(), 4);
  EXPECT_DOUBLE_EQ(*Seen(placement, 4, 4)[0], 0.375 * kUneven + 0.625 * kEven);
  ASSERT_TRUE(placement.Begin(ChangeTo(Layers({false, true})), time, 8).ok());
  EXPECT_EQ(Seen(placement, 8, 1)[0], 0.25 * kUneven + 0.75 * kEven);
  EXPECT_EQ(placement.Interrupt(time, 9)->transfers, 0) << "half of it is in force or in flight";
  EXPECT_EQ(placement.done_at(), 9);
}

}  // namespace
}  // namespace eplb
