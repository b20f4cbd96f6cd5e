// Whole jobs of ranks that use the C ABI.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/c/eplb.h"
#include "tests/client/c/c_rank.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"

namespace eplb {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int32_t kRanks = 4;  // 2 GPUs, 2 EP groups

class CJobTest : public ::testing::Test {
 protected:
  const Placement first_ = Placement::Static(SmallTopology());
  const Placement second_ = Swapped(Swapped(first_, 0, 0, 2), 2, 1, 3);
  const wire::Propose propose_ = ProposeTo(Running(0, first_), second_, 7, 1);
};

TEST_F(CJobTest, RanksSwitchAtTheSameStepAndEveryRowIsRight) {
  ScriptedDaemon daemon({});
  const std::string endpoint = daemon.endpoint();
  CJob job(kRanks);
  for (int32_t r = 0; r < kRanks; ++r) job.rank(r).options.endpoint = endpoint.c_str();
  ASSERT_EQ(job.Start(), EPLB_OK) << eplb_last_message();
  daemon.WaitForRanks(kRanks);
  daemon.SendAll(propose_);
  std::vector<int64_t> steps(kRanks, -1);
  job.Run([&](CRank& rank) {
    eplb_boundary last = {};
    steps[static_cast<size_t>(rank.rank())] = rank.StepUntil(0, [&](const eplb_boundary& now) {
      last = now;
      return now.switched != 0;
    });
    EXPECT_EQ(last.version, 7);
    EXPECT_EQ(last.reason, propose_.reason);
    EXPECT_EQ(last.received_bytes, 2 * kSmallRowBytes);
    EXPECT_EQ(last.decided_last_step, 199);
    EXPECT_EQ(rank.WrongSlots(), 0);
    eplb_placement placement = {};
    placement.struct_size = sizeof(placement);
    EXPECT_EQ(eplb_client_placement(rank.client(), &placement), EPLB_OK);
    EXPECT_EQ(placement.version, 7);
    EXPECT_EQ(placement.digest, propose_.digest.Hex());
    eplb_stats stats = {};
    stats.struct_size = sizeof(stats);
    EXPECT_EQ(eplb_client_stats(rank.client(), &stats), EPLB_OK);
    EXPECT_EQ(stats.commits, 1);
    EXPECT_EQ(stats.connected, 1);
    EXPECT_EQ(eplb_client_close(rank.client(), nullptr), EPLB_OK);
  });
  EXPECT_GE(steps[0], 0);
  EXPECT_THAT(steps, Each(steps[0]));
  EXPECT_FALSE(daemon.WaitFor<wire::Goodbye>(0).value().failed) << "NULL is the normal end";
}

absl::StatusOr<std::vector<std::string>> GatherAlone(std::string_view bytes) {
  return std::vector<std::string>{std::string(bytes)};
}

// The only rank of a job carries its rows to a placement that differs in layer 1, of which a tensor
// is derived. The code of the carry.
int32_t CarryWithDerived(CRank& rank, eplb_rebuild rebuild, void* user) {
  EXPECT_EQ(rank.Connect(), EPLB_OK) << rank.message();
  std::vector<eplb_tensor> tensors = rank.MakeTensors();
  eplb_tensor scale = {};
  scale.struct_size = sizeof(scale);
  scale.name = "scale";
  scale.layer = 1;
  scale.role = EPLB_DERIVED;
  scale.user = user;
  scale.rebuild = rebuild;
  tensors.push_back(scale);
  EXPECT_EQ(rank.Register(tensors), EPLB_OK) << rank.message();
  const int32_t turned[] = {0, 1, 2, 3, 0, 2, 1, 3, 0, 1, 2, 3};
  return eplb_client_carry(rank.client(), turned, std::size(turned), nullptr);
}

TEST_F(CJobTest, DerivedTensorsAreRebuiltByACallThatMayNotCallBack) {
  struct Seen {
    eplb_client* client = nullptr;
    std::vector<std::string> calls;
  };
  CRank rank(0, 1, &GatherAlone);
  Seen seen{rank.client(), {}};
  const auto rebuild = [](void* user, int32_t layer, const int32_t* slots, size_t num_slots) {
    auto& note = *static_cast<Seen*>(user);
    EXPECT_EQ(eplb_client_step_boundary(note.client, 99, nullptr, nullptr),
              EPLB_FAILED_PRECONDITION);
    note.calls.push_back(absl::StrCat("layer ", layer, " slots ",
                                      absl::StrJoin(slots, slots + num_slots, " "), ": ",
                                      eplb_last_message()));
    return int32_t{EPLB_OK};
  };
  EXPECT_EQ(CarryWithDerived(rank, rebuild, &seen), EPLB_OK) << rank.message();
  EXPECT_THAT(seen.calls,
              ElementsAre("layer 1 slots 1 2: step_boundary was called while carry is under way, "
                          "in another thread or in the one whose callback this is"));
}

TEST_F(CJobTest, RebuildThatThrowsIsDataLossWithItsText) {
  CRank rank(0, 1, &GatherAlone);
  const auto rebuild = [](void*, int32_t, const int32_t*, size_t) -> int32_t {
    throw std::runtime_error("no scale today");
  };
  EXPECT_EQ(CarryWithDerived(rank, rebuild, nullptr), EPLB_DATA_LOSS);
  EXPECT_EQ(rank.message(),
            "tensor \"scale\": its rebuild failed for local slots 1, 2: the callback threw: no "
            "scale today");
}

TEST_F(CJobTest, CheckExpertsPassesARightProbeAndSaysWhatAFailedOneSays) {
  const auto by_bytes = [](void* user, int32_t layer, int32_t slot, uint64_t* digest) {
    const auto& tensors = *static_cast<std::vector<const unsigned char*>*>(user);
    *digest = tensors[static_cast<size_t>(layer)][slot * kSmallRowBytes];
    return int32_t{EPLB_OK};
  };
  const auto failing = [](void*, int32_t, int32_t, uint64_t*) {
    eplb_callback_message("the forward pass had no input");
    return int32_t{EPLB_UNAVAILABLE};
  };
  CJob job(kRanks);
  job.Run([&](CRank& rank) {
    ASSERT_EQ(rank.Connect(), EPLB_OK) << rank.message();
    const std::vector<eplb_tensor> tensors = rank.MakeTensors();
    ASSERT_EQ(rank.Register(tensors), EPLB_OK) << rank.message();
    std::vector<const unsigned char*> bytes;
    bytes.reserve(tensors.size());
    for (const eplb_tensor& tensor : tensors) {
      bytes.push_back(static_cast<const unsigned char*>(tensor.base));
    }
    EXPECT_EQ(eplb_client_check_experts(rank.client(), by_bytes, &bytes, nullptr), EPLB_OK)
        << rank.message();
    EXPECT_EQ(eplb_client_check_experts(rank.client(), failing, nullptr, nullptr),
              EPLB_UNAVAILABLE);
    EXPECT_EQ(rank.message(), "the forward pass had no input");
    EXPECT_EQ(rank.WrongSlots(), 0);
  });
}

TEST_F(CJobTest, AnAllGatherThatFailsGivesItsCodeAndItsTextWithoutWhatATerminalObeys) {
  CRank rank(0, 1, [](std::string_view) -> absl::StatusOr<std::vector<std::string>> {
    return absl::DeadlineExceededError("the store \x1b[2J\rno\u009b31m");
  });
  EXPECT_EQ(rank.Connect(), EPLB_DEADLINE_EXCEEDED);
  EXPECT_EQ(rank.message(), "all_gather: the store ?[2J no?31m");
  EXPECT_EQ(eplb_last_message(), rank.message());
}

TEST_F(CJobTest, AllGatherThatThrowsIsInternalAndConnectCanBeCalledAgain) {
  bool broken = true;
  CRank rank(0, 1, [&](std::string_view bytes) -> absl::StatusOr<std::vector<std::string>> {
    if (broken) throw std::runtime_error("store gone");
    return GatherAlone(bytes);
  });
  EXPECT_EQ(rank.Connect(), EPLB_INTERNAL);
  EXPECT_EQ(rank.message(), "all_gather: the callback threw: store gone");
  broken = false;
  EXPECT_EQ(rank.Connect(), EPLB_OK) << rank.message();
}

}  // namespace
}  // namespace eplb
