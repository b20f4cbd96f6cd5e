// PlanEcho, BroadcastEcho and ReduceEcho of real clients: bytes, sums, refusals.
#include "client/echo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/client/test_job.h"

namespace eplb {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TestJob;
using testing::TestRank;

constexpr size_t kRowElements = 33;
constexpr int32_t kEchoLayer = 1;
constexpr float kUnset = -1;

// 4 GPUs with one expert each.
void OneExpertEach(ClientOptions& options) { options.num_gpus = 4; }

// Rows of a layer for the home slots and, behind them, the spare slots.
class RowsWithSpares {
 public:
  RowsWithSpares(TestRank& rank, std::string name, int32_t spare_slots)
      : name_(std::move(name)), num_homes_(rank.client().placement().num_local_slots) {
    memory_.assign(static_cast<size_t>(num_homes_ + spare_slots) * kRowElements, kUnset);
  }

  void Fill(int32_t local, float value) {
    std::fill_n(memory_.begin() + static_cast<ptrdiff_t>(local * kRowElements), kRowElements,
                value);
  }
  std::vector<float> Row(int32_t local) const {
    const auto first = memory_.begin() + static_cast<ptrdiff_t>(local * kRowElements);
    return {first, first + kRowElements};
  }
  std::vector<ReplicaRows> WithSpares(int32_t layer = kEchoLayer) {
    return View(static_cast<int32_t>(memory_.size() / kRowElements), layer);
  }
  std::vector<ReplicaRows> Homes() { return View(num_homes_, kEchoLayer); }

 private:
  std::vector<ReplicaRows> View(int32_t num_rows, int32_t layer) {
    return {{.name = name_,
             .layer = layer,
             .type = GradientType::kFloat32,
             .base = memory_.data(),
             .num_rows = num_rows,
             .row_bytes = kRowElements * sizeof(float),
             .row_stride = kRowElements * sizeof(float)}};
  }

  std::string name_;
  int32_t num_homes_;
  std::vector<float> memory_;
};

Echo EchoOf(Client& client, const std::vector<int64_t>& counts, int32_t spare_slots = 1) {
  auto echo = client.PlanEcho(kEchoLayer, counts, {.spare_slots = spare_slots, .tolerance = 0});
  EXPECT_TRUE(echo.ok()) << echo.status();
  return *std::move(echo);
}

class ClientEchoTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Channels, ClientEchoTest, ::testing::Bool(),
                         [](const auto& inproc) { return inproc.param ? "Inproc" : "Host"; });

// Expert 1 has 97 of 100 tokens: the three other GPUs get a copy of it.
TEST_P(ClientEchoTest, SpareSlotsHoldTheirExpertAndGradientsReturnHome) {
  TestJob job("", {.options = OneExpertEach, .inproc = GetParam()});
  ASSERT_TRUE(job.started().ok()) << job.started();
  // In another order this sum is another number: 1e8F + 1 is 1e8F.
  constexpr float kGradients[] = {1e8F, 1, -1e8F, 3};
  job.Run([&](int32_t r, TestRank& rank) {
    Client& client = rank.client();
    const Echo echo = EchoOf(client, {1, 97, 1, 1});
    ASSERT_THAT(echo.plan.source, ElementsAre(1, -1, 1, 1));
    EXPECT_THAT(echo.plan.spare_tokens, ElementsAre(24, 0, 24, 24));
    EXPECT_THAT(echo.plan.home_tokens, ElementsAre(1, 25, 1, 1));

    RowsWithSpares weights(rank, "w", 1);
    weights.Fill(0, static_cast<float>(100 + r));
    const absl::Status sent = client.BroadcastEcho(echo, weights.WithSpares());
    ASSERT_TRUE(sent.ok()) << sent;
    EXPECT_THAT(weights.Row(0), Each(static_cast<float>(100 + r))) << "a home's weights";
    EXPECT_THAT(weights.Row(1), Each(r == 1 ? kUnset : 101.0F)) << "a spare slot's weights";

    RowsWithSpares gradients(rank, "g", 1);
    gradients.Fill(0, r == 1 ? kGradients[0] : 7);
    if (r != 1) gradients.Fill(1, kGradients[r == 0 ? 1 : r]);
    const absl::Status summed = client.ReduceEcho(echo, gradients.WithSpares());
    ASSERT_TRUE(summed.ok()) << summed;
    const float sum = ((kGradients[0] + kGradients[1]) + kGradients[2]) + kGradients[3];
    EXPECT_THAT(gradients.Row(0), Each(r == 1 ? sum : 7.0F)) << "a home's gradient";

    EXPECT_EQ(rank.WrongSlots(), 0) << "registered weights and optimizer state moved";
    for (int64_t step = 0; step < 8; ++step) EXPECT_TRUE(rank.Step(step).ok());
    EXPECT_TRUE(client.BroadcastEcho(echo, weights.WithSpares()).ok());
  });
}

// Two GPUs with three homes and two spare slots, two EP groups; experts 0 and 1 have two homes.
TEST_P(ClientEchoTest, GradientsOfEchoesAndOfReplicasAddUp) {
  TestJob job("", {.options =
                       [](ClientOptions& options) {
                         options.num_slots = 6;
                         options.state_placement = StatePlacement::kWithPrimary;
                       },
                   .inproc = GetParam()});
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([](int32_t r, TestRank& rank) {
    Client& client = rank.client();
    const auto group = static_cast<float>(1 + r / 2);
    const bool first_gpu = r % 2 == 0;
    // Slots 0..2 hold experts 0, 1, 2 and slots 3..5 hold 3, 0, 1.
    const Echo echo = EchoOf(client, {2, 2, 90, 4}, 2);
    ASSERT_THAT(echo.plan.source, ElementsAre(-1, -1, 2, -1));
    RowsWithSpares gradients(rank, "g", 2);
    for (int32_t local = 0; local < 3; ++local) gradients.Fill(local, group);
    if (!first_gpu) gradients.Fill(3, 10 * group);
    ASSERT_TRUE(client.ReduceEcho(echo, gradients.WithSpares()).ok());
    ASSERT_TRUE(client.ReduceGradients(gradients.Homes()).ok());
    const std::vector<float> expected =
        first_gpu ? std::vector<float>{2, 2, 11} : std::vector<float>{1, 1, 1};
    for (int32_t local = 0; local < 3; ++local) {
      EXPECT_THAT(gradients.Row(local), Each(group * expected[static_cast<size_t>(local)]))
          << local;
    }
  });
}

TEST_P(ClientEchoTest, RanksWithDifferentPlansAreStopped) {
  TestJob job("", {.options =
                       [](ClientOptions& options) {
                         OneExpertEach(options);
                         options.vote_deadline = absl::Seconds(1);
                       },
                   .inproc = GetParam()});
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([](int32_t r, TestRank& rank) {
    const Echo echo =
        r == 2 ? EchoOf(rank.client(), {97, 1, 1, 1}) : EchoOf(rank.client(), {1, 97, 1, 1});
    RowsWithSpares weights(rank, "w", 1);
    weights.Fill(0, static_cast<float>(100 + r));
    absl::Status status = rank.client().BroadcastEcho(echo, weights.WithSpares());
    // A rank that only sends may be through with the call before the other one has refused.
    if (status.ok()) status = rank.client().BroadcastEcho(echo, weights.WithSpares());
    if (r == 1 || r == 2) {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    } else {  // these exchange no rows with rank 2: they may learn of it only in the next vote
      EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kAborted) << status;
      if (!status.ok()) return;
      EXPECT_THAT(weights.Row(1), Each(101.0F));
    }
  });
}

// Nothing is begun, so the run goes on.
TEST(ClientEchoRefusalTest, WhatCannotBeCarriedIsRefusedAndNamed) {
  TestJob job("", {.options = OneExpertEach});
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([](int32_t, TestRank& rank) {
    Client& client = rank.client();
    const Echo echo = EchoOf(client, {1, 97, 1, 1});
    RowsWithSpares weights(rank, "w", 1);
    const auto refused = [&](const Echo& plan, const std::vector<ReplicaRows>& rows) {
      return std::string(client.BroadcastEcho(plan, rows).message());
    };
    EXPECT_EQ(refused(echo, weights.Homes()),
              "tensor \"w\": has 1 rows, GPU " + std::to_string(rank.rank()) + " has 2 slots");
    EXPECT_EQ(refused(echo, weights.WithSpares(0)),
              "BroadcastEcho: tensor \"w\" is of layer 0, the plan of layer 1");
    EXPECT_EQ(
        refused(Echo{.version = echo.version + 1, .plan = echo.plan}, weights.WithSpares()),
        absl::StrCat("BroadcastEcho: the plan was made under placement version ", echo.version + 1,
                     ", version ", echo.version, " is in force; plan again after a switch"));
    Echo broken = echo;
    broken.plan.source[2] = 4;
    EXPECT_EQ(refused(broken, weights.WithSpares()),
              "BroadcastEcho: spare slot 2 has a copy of slot 4, expected one of 0..3");
    broken.plan.source.pop_back();
    EXPECT_THAT(refused(broken, weights.WithSpares()), HasSubstr("the plan has 3 spare slots"));
    EXPECT_THAT(
        std::string(client.PlanEcho(kEchoLayer, std::vector<int64_t>{1}, {}).status().message()),
        HasSubstr("layer 1: tokens of 1 experts, expected 4"));
    EXPECT_TRUE(client.BroadcastEcho(echo, weights.WithSpares()).ok());
  });
}

TEST(ClientEchoDisabledTest, HasNoReplicaAndCarriesNothing) {
  ASSERT_EQ(setenv("EPLB_DISABLE", "1", 1), 0);
  TestJob job("", {.options = OneExpertEach});
  EXPECT_EQ(unsetenv("EPLB_DISABLE"), 0);
  ASSERT_TRUE(job.started().ok()) << job.started();
  job.Run([](int32_t, TestRank& rank) {
    const Echo echo = EchoOf(rank.client(), {1, 97, 1, 1});
    EXPECT_THAT(echo.plan.source, Each(-1));
    EXPECT_THAT(echo.plan.home_tokens, ElementsAre(1, 97, 1, 1));
    EXPECT_EQ(echo.plan.peak.peak, 97);
    RowsWithSpares weights(rank, "w", 1);
    EXPECT_TRUE(rank.client().BroadcastEcho(echo, weights.WithSpares()).ok());
    EXPECT_THAT(weights.Row(1), Each(kUnset));
  });
}

}  // namespace
}  // namespace eplb
