// Client::Split, CheckCounts and RouteBySplit over a job's life: all ranks together meet the
// quotas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "client/batch_splits.h"
#include "client/client.h"
#include "client/session/split_sums.h"
#include "client/tokens.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"
#include "tests/client/test_job.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kSplitExperts = 4;
constexpr int32_t kSplitSlots = 6;  // experts 0 and 1 have two
constexpr int32_t kSplitGpus = 2;
constexpr int32_t kSplitTokens = 64;

TestJobHooks JobOfSixSlots() {
  return {.options = [](ClientOptions& options) { options.num_slots = kSplitSlots; }};
}

// The experts that a rank's router chose, expert 0 most.
std::vector<int32_t> SplitChoicesOf(int32_t rank, int32_t step) {
  std::mt19937 random(static_cast<uint32_t>(100 * rank + step));
  std::vector<int32_t> ids(kSplitTokens);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 3 == 0 ? 1 + random() % 3 : 0);
  return ids;
}

// [kSplitGpus, kSplitExperts], of the ranks of an EP group, of two consecutive ranks.
std::vector<int64_t> SplitCountsOf(int32_t ep_group, int32_t step) {
  std::vector<int64_t> counts(kSplitGpus * kSplitExperts);
  for (int32_t gpu = 0; gpu < kSplitGpus; ++gpu) {
    for (const int32_t id : SplitChoicesOf(kSplitGpus * ep_group + gpu, step)) {
      ++counts[static_cast<size_t>(kSplitExperts * gpu + id)];
    }
  }
  return counts;
}

cuda::CountArgs SplitArgs(const std::vector<int32_t>& ids) {
  return {.expert_ids = ids.data(),
          .num_tokens = static_cast<int64_t>(ids.size()),
          .top_k = 1,
          .num_experts = kSplitExperts};
}

struct RankSplit {
  std::vector<int64_t> quotas = std::vector<int64_t>(kSplitSlots, 77);
  std::vector<int64_t> own = std::vector<int64_t>(kSplitSlots, 77);
  std::vector<int32_t> slots = std::vector<int32_t>(kSplitTokens, 77);
  SplitFigures figures;
};

// Splits and routes one step of a rank.
absl::Status SplitAndRoute(Client& client, int32_t rank, int32_t layer, int32_t step,
                           RankSplit& split) {
  const std::vector<int64_t> counts = SplitCountsOf(rank / kSplitGpus, step);
  const absl::StatusOr<SplitFigures> figures =
      client.Split(layer, {.by_gpu = counts}, split.quotas, split.own);
  if (!figures.ok()) return figures.status();
  split.figures = *figures;
  const std::vector<int32_t> ids = SplitChoicesOf(rank, step);
  return RouteBySplit(
      client.placement(), SplitArgs(ids),
      {.layer = layer, .version = figures->version, .own = split.own, .slots = split.slots.data()});
}

// Every choice is in a slot of its expert, and both ranks together fill the quotas.
void ExpectQuotasAreMet(const PlacementView& view, int32_t layer, int32_t step, int32_t ep_group,
                        const std::vector<RankSplit>& splits) {
  std::vector<int64_t> met(kSplitSlots);
  for (int32_t gpu = 0; gpu < kSplitGpus; ++gpu) {
    const int32_t rank = kSplitGpus * ep_group + gpu;
    const RankSplit& split = splits[static_cast<size_t>(rank)];
    const std::vector<int32_t> ids = SplitChoicesOf(rank, step);
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto slot = static_cast<size_t>(split.slots[i]);
      ASSERT_LT(slot, static_cast<size_t>(kSplitSlots));
      EXPECT_EQ(view.physical_to_logical_map[static_cast<size_t>(layer * kSplitSlots) + slot],
                ids[i]);
      ++met[slot];
    }
    EXPECT_EQ(split.quotas, splits[static_cast<size_t>(kSplitGpus * ep_group)].quotas);
  }
  EXPECT_EQ(met, splits[static_cast<size_t>(kSplitGpus * ep_group)].quotas);
}

TEST(ClientSplitTest, CountForAndRouteFromInHostMemoryAreTheSplitOfTheBatch) {
  StartedJob job("", JobOfSixSlots());
  job.Run([&](int32_t r, TestRank& rank) {
    Client& client = rank.client();
    RankSplit expected;
    ASSERT_TRUE(SplitAndRoute(client, r, 1, 0, expected).ok());
    const std::vector<int32_t> ids = SplitChoicesOf(r, 0);
    std::vector<int64_t> gathered = SplitCountsOf(r / kSplitGpus, 0);
    std::vector<int64_t> row(kSplitExperts, 77);
    std::vector<int64_t> counters(kSplitExperts + 1, 1);
    cuda::CountArgs choices = SplitArgs(ids);
    choices.counts = counters.data();
    choices.out_of_range = &counters.back();
    ASSERT_TRUE(client.PrepareSplit({.max_tokens = kSplitTokens, .top_k = 1}).ok());
    ASSERT_TRUE(client.CountFor(1, choices, row.data()).ok());
    const auto mine = std::span(gathered).subspan(
        static_cast<size_t>(r % kSplitGpus * kSplitExperts), kSplitExperts);
    EXPECT_THAT(row, ::testing::ElementsAreArray(mine));
    EXPECT_EQ(counters[0], row[0] + 1);
    std::vector<int32_t> slots(kSplitTokens, 77);
    ASSERT_TRUE(client.RouteFrom(1, gathered.data(), slots.data()).ok());
    EXPECT_EQ(slots, expected.slots);
    EXPECT_EQ(client.split_figures().newest.peak, expected.figures.peak);
    ASSERT_TRUE(client.CountFor(1, choices, row.data()).ok());
    gathered[0] = -1;
    ASSERT_TRUE(client.RouteFrom(1, gathered.data(), slots.data()).ok());
    EXPECT_THAT(slots, ::testing::Each(::testing::Ge(0))) << "drawn";
    EXPECT_EQ(client.split_figures().batches, 2);
    EXPECT_EQ(client.split_figures().refused, 1);
    EXPECT_EQ(client.split_figures().drawn, kSplitTokens);
    gathered[0] = 0;
    std::ranges::fill(mine, 0);
    ASSERT_TRUE(client.CountFor(1, choices, row.data()).ok());
    ASSERT_TRUE(client.RouteFrom(1, gathered.data(), slots.data()).ok());
    EXPECT_EQ(client.split_figures().refused, 1);
    EXPECT_EQ(client.split_figures().drawn, 2 * kSplitTokens) << "the gathered counts are wrong";
    EXPECT_EQ(client.CountFor(1, choices, counters.data()).message(),
              "row shares memory with choices.counters, expected one apart from it");
    auto* const last = reinterpret_cast<int64_t*>(slots.data() + kSplitTokens - 2);
    EXPECT_EQ(client.CountFor(1, SplitArgs(slots), last).message(),
              "row shares memory with choices.expert_ids, expected one apart from it");
    cuda::CountArgs padded = choices;
    padded.is_padding = reinterpret_cast<const uint8_t*>(row.data());
    EXPECT_EQ(client.CountFor(1, padded, row.data()).message(),
              "row shares memory with choices.is_padding, expected one apart from it");
    EXPECT_EQ(client.RouteFrom(0, gathered.data(), slots.data()).message(),
              "route_from of layer 0 was called before its count_for, which each call needs");
    EXPECT_EQ(client.PrepareSplit({.max_tokens = 1, .top_k = 0}).message(),
              "setup.top_k is 0, expected at least 1");
    EXPECT_EQ(client.PrepareSplit({.max_tokens = -1, .top_k = 8}).message(),
              "setup.max_tokens is -1, expected 1..268435456 with a top_k of 8");
    EXPECT_EQ(client.PrepareSplit({.max_tokens = 268'435'457, .top_k = 8}).message(),
              "setup.max_tokens is 268435457, expected 1..268435456 with a top_k of 8");
    const absl::Duration short_one = absl::Nanoseconds(999);
    EXPECT_EQ(client.PrepareSplit({.max_tokens = 1, .top_k = 1, .deadline = short_one}).message(),
              "setup.deadline_s is 9.99e-07, expected 1e-06..60");
  });
}

// Routes a batch by CountFor and RouteFrom; is_refused: with a count that no split takes.
void RouteOnStream(Client& client, int32_t rank, int32_t batch, bool is_refused) {
  const std::vector<int32_t> ids = SplitChoicesOf(rank, batch);
  std::vector<int64_t> gathered = SplitCountsOf(rank / kSplitGpus, batch);
  std::vector<int64_t> row(kSplitExperts);
  std::vector<int32_t> slots(kSplitTokens);
  if (is_refused) gathered[0] = -1;
  EXPECT_TRUE(client.CountFor(1, SplitArgs(ids), row.data()).ok());
  EXPECT_TRUE(client.RouteFrom(1, gathered.data(), slots.data()).ok());
}

// The first two load windows of each rank, a step each, of which a batch of the second is refused.
std::vector<std::array<wire::LoadReport, 2>> WindowsOf(const std::string& split) {
  ScriptedDaemon daemon({});
  StartedJob job(daemon.endpoint(), {.options = [&split](ClientOptions& options) {
                   options.num_slots = kSplitSlots;
                   options.split = split;
                   options.report_every = 1;
                 }});
  daemon.WaitForRanks(kTestRanks);
  job.Run([](int32_t r, TestRank& rank) {
    ASSERT_TRUE(rank.client().PrepareSplit({.max_tokens = kSplitTokens, .top_k = 1}).ok());
    for (int32_t step = 0; step < 2; ++step) {
      RouteOnStream(rank.client(), r, 0, /*is_refused=*/false);
      RouteOnStream(rank.client(), r, 1, /*is_refused=*/step == 1);
      ASSERT_TRUE(rank.Step(step).ok());
    }
  });
  std::vector<std::array<wire::LoadReport, 2>> windows;
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    windows.push_back(
        {*daemon.WaitFor<wire::LoadReport>(rank, 1), *daemon.WaitFor<wire::LoadReport>(rank, 2)});
  }
  return windows;
}

TEST(ClientSplitTest, StepBoundaryReportsTheSplitsOfRouteFrom) {
  const Placement placement = Placement::Static(*Topology::Make({.num_layers = 3,
                                                                 .num_experts = kSplitExperts,
                                                                 .num_slots = kSplitSlots,
                                                                 .num_gpus = kSplitGpus}));
  const std::vector<std::array<wire::LoadReport, 2>> windows = WindowsOf("batch");
  BatchSplits splits(std::make_shared<const Placement>(placement), 0);
  for (int32_t rank = 0; rank < kTestRanks; ++rank) {
    SplitSums sums;
    for (const int32_t batch : {0, 1}) {
      std::vector<int64_t> quotas(kSplitSlots);
      ASSERT_TRUE(splits
                      .Split(LayerId{1}, {.by_gpu = SplitCountsOf(rank / kSplitGpus, batch)},
                             {.self = GpuId{0}, .quotas = quotas, .own = {}})
                      .ok());
      const SplitSums added = *SumsOfSplit(1, quotas, placement);
      sums.tokens += added.tokens;
      sums.peak += added.peak;
      sums.peak_static += added.peak_static;
      sums.peak_without_eplb += added.peak_without_eplb;
    }
    const auto& [first, second] = windows[static_cast<size_t>(rank)];
    EXPECT_THAT(first.split_tokens, ElementsAre(0, sums.tokens, 0)) << "layer 1 alone is split";
    EXPECT_THAT(first.split_peaks, ElementsAre(0, sums.peak, 0));
    EXPECT_THAT(first.split_peaks_static, ElementsAre(0, sums.peak_static, 0));
    EXPECT_THAT(first.split_peaks_without_eplb, ElementsAre(0, sums.peak_without_eplb, 0));
    EXPECT_THAT(second.split_tokens, ElementsAre(0, 0, 0)) << "a batch drew its slots";
  }
  for (const auto& [first, second] : WindowsOf("equal")) {
    EXPECT_TRUE(first.split_tokens.empty() && second.split_tokens.empty());
  }
}

TEST(ClientSplitTest, RanksMeetTheQuotasWithoutTalkingAndFollowASwitch) {
  const Topology topology = Topology::Make({.num_layers = 3,
                                            .num_experts = kSplitExperts,
                                            .num_slots = kSplitSlots,
                                            .num_gpus = kSplitGpus})
                                .value();
  const Placement first = Placement::Static(topology);
  const Placement second = Swapped(first, 1, 0, 5);  // expert 0 twice on GPU 1
  ScriptedDaemon daemon({});
  StartedJob job(daemon.endpoint(), JobOfSixSlots());
  daemon.WaitForRanks(kTestRanks);
  std::vector<RankSplit> before(kTestRanks);
  std::vector<RankSplit> after(kTestRanks);
  job.Run([&](int32_t r, TestRank& rank) {
    const absl::Status split =
        SplitAndRoute(rank.client(), r, 1, 0, before[static_cast<size_t>(r)]);
    EXPECT_TRUE(split.ok()) << split;
  });
  for (const int32_t ep_group : {0, 1}) {
    ExpectQuotasAreMet(job.rank(0).client().placement(), 1, 0, ep_group, before);
  }
  daemon.SendAll(ProposeTo(Running(0, first), second, 7, 1));
  job.Run([&](int32_t r, TestRank& rank) {
    const auto index = static_cast<size_t>(r);
    const absl::StatusOr<int64_t> step =
        rank.StepUntil(0, [](const BoundaryResult& result) { return result.switched; });
    ASSERT_TRUE(step.ok()) << step.status();
    const absl::Status split = SplitAndRoute(rank.client(), r, 1, 0, after[index]);
    EXPECT_TRUE(split.ok()) << split;
    // A split from before the switch does not route after it.
    const std::vector<int32_t> ids = SplitChoicesOf(r, 0);
    std::vector<int32_t> slots(kSplitTokens, 77);
    const absl::Status stale =
        RouteBySplit(rank.client().placement(), SplitArgs(ids),
                     {.layer = 1, .version = 0, .own = before[index].own, .slots = slots.data()});
    EXPECT_EQ(stale.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(
        stale.message(),
        "the split is of placement version 0, the current version is 7: split this batch again");
    EXPECT_THAT(slots, ::testing::Each(77));
  });
  for (const int32_t ep_group : {0, 1}) {
    ExpectQuotasAreMet(job.rank(0).client().placement(), 1, 0, ep_group, after);
  }
  EXPECT_EQ(after[0].figures.version, 7);
  EXPECT_NE(after[0].quotas, before[0].quotas);
}

TEST(ClientSplitTest, AProbeSplitsUnderThePlacementThatItSees) {
  StartedJob job("", JobOfSixSlots());
  job.Run([](int32_t r, TestRank& rank) {
    const absl::Status checked = rank.client().CheckExperts([&](int32_t layer, int32_t local_slot) {
      RankSplit split;
      const absl::Status routed = SplitAndRoute(rank.client(), r, layer, 1, split);
      EXPECT_TRUE(routed.ok()) << routed;
      const std::vector<int32_t> ids = SplitChoicesOf(r, 1);
      const PlacementView& view = rank.client().placement();
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(
            view.physical_to_logical_map[static_cast<size_t>(layer * kSplitSlots + split.slots[i])],
            ids[i]);
      }
      return rank.BytesOf(layer, local_slot);
    });
    EXPECT_TRUE(checked.ok()) << checked;
  });
}

TEST(ClientSplitTest, ADisabledClientSplitsItsStaticPlacement) {
  setenv("EPLB_DISABLE", "1", 1);
  StartedJob job("127.0.0.1:1", JobOfSixSlots());
  unsetenv("EPLB_DISABLE");
  RankSplit split;
  const absl::Status routed = SplitAndRoute(job.rank(1).client(), 1, 0, 0, split);
  EXPECT_TRUE(routed.ok()) << routed;
  const std::vector<int64_t> counts(kSplitExperts);
  EXPECT_TRUE(job.rank(1).client().CheckCounts(0, counts).ok()) << "of this rank alone";
}

// One message on all ranks.
std::string CheckOnAllRanks(TestJob& job,
                            const std::function<absl::Status(int32_t, Client&)>& call) {
  std::vector<absl::Status> statuses(kTestRanks);
  job.Run([&](int32_t r, TestRank& rank) {
    statuses[static_cast<size_t>(r)] = call(r, rank.client());
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  if (statuses[0].ok()) return "OK";
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kFailedPrecondition);
  return std::string(statuses[0].message());
}

TEST(ClientSplitTest, CountsThatDifferBetweenRanksAreNamedOnEveryRank) {
  StartedJob job("", JobOfSixSlots());
  const auto check = [&](const std::function<void(int32_t, std::vector<int64_t>&)>& change) {
    return CheckOnAllRanks(job, [&](int32_t r, Client& client) {
      std::vector<int64_t> counts =
          SplitCountsOf(r / kSplitGpus, 3);  // EP groups have batches of their own
      change(r, counts);
      return client.CheckCounts(1, counts);
    });
  };
  EXPECT_EQ(check([](int32_t, std::vector<int64_t>&) {}), "OK");
  EXPECT_EQ(check([](int32_t r, std::vector<int64_t>& counts) {
              if (r == 3) counts[5] += 2;
            }),
            "check_counts: tokens differs: rank 2 has 128 in 8 counts, rank 3 has 130 in 8 counts");
  EXPECT_THAT(check([](int32_t r, std::vector<int64_t>& counts) {
                if (r == 1) std::swap(counts[0], counts[1]);
              }),
              HasSubstr("check_counts: counts differs: rank 0 has checksum "));
  EXPECT_EQ(check([](int32_t r, std::vector<int64_t>& counts) {
              if (r == 1) counts.pop_back();
            }),
            "check_counts: rank 1: layer 1: 7 counts, expected 4 or 2 times as many");
  EXPECT_EQ(check([](int32_t, std::vector<int64_t>& counts) { counts[6] = -3; }),
            "check_counts: rank 0: layer 1: expert 2 has -3 tokens of GPU 1, expected "
            "0..68719476736");
  EXPECT_EQ(CheckOnAllRanks(job,
                            [](int32_t, Client& client) {
                              return client.CheckCounts(-1, std::vector<int64_t>(kSplitExperts));
                            }),
            "check_counts: rank 0: layer is -1, expected 0..2");
  EXPECT_EQ(CheckOnAllRanks(job,
                            [](int32_t r, Client& client) {
                              const std::vector<int64_t> counts(kSplitExperts, 5);
                              return client.CheckCounts(r == 0 ? 1 : 2, counts);
                            }),
            "check_counts: layer differs: rank 0 has 1, rank 1 has 2");
  job.Run([](int32_t r, TestRank& rank) {
    if (r == 2) {
      EXPECT_TRUE(rank.client().SetSplitOptions({.slack = 0.5}).ok());
    }
  });
  EXPECT_EQ(
      check([](int32_t, std::vector<int64_t>&) {}),
      "check_counts: split options differs: rank 2 has slack 0.5, speeds [], rank 3 has slack "
      "0, speeds []");
}

// Expert 0 in slots 1 and 3, its primary in slot 3; expert 1 in slot 0; slot 2 holds nothing.
class RouteBySplitTest : public ::testing::Test {
 protected:
  RouteBySplitTest() {
    view_.num_layers = 1;
    view_.num_experts = 2;
    view_.num_slots = 4;
    view_.max_replicas = 3;
    view_.logical_replica_count = replica_count_;
    view_.logical_to_physical_map = replicas_;
  }

  template <class Id>
  absl::Status Route(const std::vector<Id>& ids, const std::vector<int64_t>& own,
                     std::vector<Id>& slots) {
    return RouteBySplit(
        view_,
        {.expert_ids = ids.data(),
         .id_type = sizeof(Id) == 8 ? cuda::ExpertIdType::kInt64 : cuda::ExpertIdType::kInt32,
         .is_padding = padding_.empty() ? nullptr : padding_.data(),
         .num_tokens = static_cast<int64_t>(ids.size()) / 2,
         .top_k = 2,
         .num_experts = 2,
         .counts = counters_.data(),
         .out_of_range = &counters_[2]},
        {.layer = 0, .version = 0, .own = own, .slots = slots.data()});
  }

  const std::vector<int32_t> replica_count_ = {2, 1};
  const std::vector<int32_t> replicas_ = {3, 1, -1, 0, -1, -1};
  std::vector<uint8_t> padding_;
  std::vector<int64_t> counters_ = {0, 0, 0};
  PlacementView view_;
};

TEST_F(RouteBySplitTest, ChoicesFillTheSlotsInTheirOrderThePrimaryFirst) {
  const std::vector<int32_t> ids = {0, 1, 0, 0, 1, 0, 7, 0};
  std::vector<int32_t> slots(8, 77);
  const absl::Status routed = Route(ids, {2, 2, 0, 3}, slots);
  ASSERT_TRUE(routed.ok()) << routed;
  EXPECT_THAT(slots, ElementsAre(3, 0, 3, 3, 0, 1, -1, 1));
  EXPECT_THAT(counters_, ElementsAre(5, 2, 1));
}

TEST_F(RouteBySplitTest, PaddingTakesNoQuotaAndTheIdsMayBeTheSlots) {
  padding_ = {0, 255, 0};
  std::vector<int64_t> ids = {0, 1, 0, 0, 1, 0};
  const absl::Status routed = Route(ids, {2, 1, 0, 1}, ids);
  ASSERT_TRUE(routed.ok()) << routed;
  EXPECT_THAT(ids, ElementsAre(3, 0, -1, -1, 0, 1));
  EXPECT_THAT(counters_, ElementsAre(2, 2, 0));
}

TEST_F(RouteBySplitTest, ASplitOfOtherCountsIsRefusedAndNothingIsWritten) {
  const std::vector<int32_t> ids = {0, 1, 0, 1};
  std::vector<int32_t> slots(4, 77);
  for (const auto& [own, said] :
       {std::pair<std::vector<int64_t>, std::string>{
            {2, 2, 0, 1},
            "layer 0: expert 0 has 2 choices of this rank, its own quotas sum to 3: the split is "
            "of "
            "other counts"},
        {{1, 1, 0, 1},
         "layer 0: expert 1 has 2 choices of this rank, its own quotas sum to 1: the split is of "
         "other counts"},
        {{2, -1, 0, 3}, "split.own[1] is -1, expected 0 or more"},
        {{2, 1, 0}, "split.own has 3 quotas, expected 4"}}) {
    const absl::Status status = Route(ids, own, slots);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), said);
  }
  const absl::Status huge = Route(ids, {2, INT64_MAX, 0, INT64_MAX}, slots);
  EXPECT_THAT(std::string(huge.message()), HasSubstr("expert 0 has 2 choices"));
  EXPECT_THAT(slots, ::testing::Each(77));
  EXPECT_THAT(counters_, ::testing::Each(0));
}

}  // namespace
}  // namespace eplb
