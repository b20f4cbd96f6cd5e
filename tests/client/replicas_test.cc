// ReduceGradients, BroadcastWeights and ExpertSquares of real clients: EP groups, refusals, ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "tests/client/faulty_channels.h"
#include "tests/client/test_job.h"

namespace eplb {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr size_t kElements = 5;
constexpr int32_t kReplicaLayers = 3;

// Expert e is in slots e and e + 4: experts 0..2 have two replicas, expert 3 has one. GPU 0 has
// slots 0..3.
void WithReplicas(ClientOptions& options) {
  options.num_slots = 7;
  options.state_placement = StatePlacement::kWithPrimary;
}

// A float for each rank, layer and slot, and what the rank gives for it.
class Gradients {
 public:
  explicit Gradients(TestRank& rank) {
    const PlacementView& view = rank.client().placement();
    for (int32_t layer = 0; layer < kReplicaLayers; ++layer) {
      auto& rows = memory_.emplace_back();
      for (int32_t local = 0; local < view.num_local_slots; ++local) {
        rows.insert(rows.end(), kElements,
                    Initial(rank.rank() / 2, layer, view.first_local_slot + local));
      }
      views_.push_back({.name = absl::StrCat(layer, ".gradient"),
                        .layer = layer,
                        .type = GradientType::kFloat32,
                        .base = rows.data(),
                        .num_rows = view.num_local_slots,
                        .row_bytes = kElements * sizeof(float),
                        .row_stride = kElements * sizeof(float)});
    }
  }

  static float Initial(int32_t ep_group, int32_t layer, int32_t slot) {
    return static_cast<float>(1 + slot + 10 * layer) * (ep_group == 0 ? 1.0F : 0.01F);
  }
  std::vector<ReplicaRows>& views() { return views_; }
  float At(int32_t layer, int32_t local) const {
    return memory_[static_cast<size_t>(layer)][static_cast<size_t>(local) * kElements];
  }

 private:
  std::vector<std::vector<float>> memory_;
  std::vector<ReplicaRows> views_;
};

TEST(ReplicasTest, EpGroupsSumTheirOwnReplicasAndTheJobGoesOn) {
  StartedJob job("", {.options = WithReplicas});
  job.Run([](int32_t r, TestRank& rank) {
    Client& client = rank.client();
    const int32_t ep_group = r / 2;
    Gradients gradients(rank);
    const absl::Status reduced = client.ReduceGradients(gradients.views());
    ASSERT_TRUE(reduced.ok()) << reduced;
    const int32_t first = client.placement().first_local_slot;
    std::vector<double> expected(size_t{kReplicaLayers} * 4);
    for (int32_t layer = 0; layer < kReplicaLayers; ++layer) {
      const auto sum_of = [&](int32_t expert) {
        const float own = Gradients::Initial(ep_group, layer, expert);
        return expert == 3 ? own : own + Gradients::Initial(ep_group, layer, expert + 4);
      };
      for (int32_t local = 0; local < client.placement().num_local_slots; ++local) {
        const int32_t slot = first + local;
        EXPECT_EQ(gradients.At(layer, local),
                  slot < 4 ? sum_of(slot) : Gradients::Initial(ep_group, layer, slot));
      }
      for (int32_t expert = 0; expert < 4; ++expert) {
        const double sum = sum_of(expert);
        expected[static_cast<size_t>(layer) * 4 + static_cast<size_t>(expert)] =
            sum * sum * kElements;
      }
    }
    const auto squares = client.ExpertSquares(gradients.views());
    ASSERT_TRUE(squares.ok()) << squares.status();
    EXPECT_THAT(*squares, ::testing::Pointwise(::testing::DoubleNear(1e-9), expected));
    ASSERT_TRUE(client.BroadcastWeights(gradients.views()).ok());
    for (int64_t step = 0; step < 8; ++step) EXPECT_TRUE(rank.Step(step).ok());
    EXPECT_TRUE(client.ReduceGradients(gradients.views()).ok());
    EXPECT_EQ(rank.WrongSlots(), 0);
  });
}

// GPU 1 has no primary. More rounds than a row queue holds batches.
TEST(ReplicasTest, WithStateInEveryReplicaAllGetTheSumStepAfterStep) {
  StartedJob job("", {.options = [](ClientOptions& options) { options.num_slots = 8; }});
  job.Run([](int32_t r, TestRank& rank) {
    Client& client = rank.client();
    for (int32_t round = 0; round < 100; ++round) {
      Gradients gradients(rank);
      const absl::Status reduced = client.ReduceGradients(gradients.views());
      ASSERT_TRUE(reduced.ok()) << reduced;
      const auto squares = client.ExpertSquares(gradients.views());
      ASSERT_TRUE(squares.ok()) << squares.status();
      for (int32_t layer = 0; layer < kReplicaLayers; ++layer) {
        for (int32_t local = 0; local < 4; ++local) {
          const float sum =
              Gradients::Initial(r / 2, layer, local) + Gradients::Initial(r / 2, layer, local + 4);
          ASSERT_EQ(gradients.At(layer, local), sum);
          ASSERT_NEAR((*squares)[static_cast<size_t>(layer * 4 + local)], kElements * sum * sum,
                      1e-6 * sum * sum);
        }
      }
    }
  });
}

// Two ranks of an EP group that differ in what they call: no row is added where it does not belong.
TEST(ReplicasTest, RanksThatCallWithOtherRowsAreStopped) {
  using Call = std::function<absl::Status(Client&, Gradients&)>;
  const Call reduce = [](Client& client, Gradients& rows) {
    return client.ReduceGradients(rows.views());
  };
  const Call others[] = {
      [](Client& client, Gradients& rows) { return client.BroadcastWeights(rows.views()); },
      [](Client& client, Gradients& rows) {
        std::swap(rows.views()[0], rows.views()[1]);
        return client.ReduceGradients(rows.views());
      },
      [](Client& client, Gradients& rows) {
        for (ReplicaRows& each : rows.views()) each.type = GradientType::kBfloat16;
        return client.ReduceGradients(rows.views());
      },
      [](Client& client, Gradients& rows) {
        rows.views().resize(2);
        return client.ReduceGradients(rows.views());
      },
      [](Client& client, Gradients& rows) { return client.ExpertSquares(rows.views()).status(); }};
  for (const Call& other : others) {
    StartedJob job("", {.options = [](ClientOptions& options) {
                     WithReplicas(options);
                     // A rank whose partner sends it nothing at all waits until then.
                     options.vote_deadline = absl::Seconds(1);
                   }});
    job.Run([&](int32_t r, TestRank& rank) {
      if (r >= 2) return;
      Gradients gradients(rank);
      absl::Status status = (r == 0 ? reduce : other)(rank.client(), gradients);
      // A rank that only sends may be through with the call before the other one has refused.
      if (status.ok()) status = rank.client().BroadcastWeights(gradients.views());
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    });
  }
}

TEST(ReplicasTest, ARankThatClosedEndsTheOthersCallAtOnce) {
  StartedJob job("", {.options = WithReplicas});
  job.rank(1).client().Close("out of memory");
  Gradients gradients(job.rank(0));
  const absl::Time began = absl::Now();
  EXPECT_EQ(job.rank(0).client().ReduceGradients(gradients.views()).code(),
            absl::StatusCode::kAborted);
  EXPECT_LT(absl::Now() - began, absl::Seconds(5));
}

// A communicator fails if a rank leaves it, so no rank may leave while others still carry rows.
TEST(ReplicasEndTest, ARankThatFinishedStaysUntilTheOthersHaveTheirLastRows) {
  std::atomic<bool> left = false;
  std::atomic<bool> carried = false;
  StartedJob job(
      "", {.options = WithReplicas, .transport = OnRank<WatchedTransport>(0, std::ref(left))});
  job.Run([&](int32_t r, TestRank& rank) {
    Gradients gradients(rank);
    ASSERT_TRUE(rank.client().ReduceGradients(gradients.views()).ok());
    if (r == 1) {
      absl::SleepFor(absl::Milliseconds(300));
      EXPECT_FALSE(left);
      carried = true;
    }
    rank.client().Close("finished");
    rank.Stop();
    EXPECT_TRUE(carried);
  });
  EXPECT_TRUE(left);
}

TEST(ReplicasTest, ARankThatFinishedIsNamedToThoseThatGoOn) {
  StartedJob job("", {.options = WithReplicas});
  job.Run([](int32_t r, TestRank& rank) {
    Gradients gradients(rank);
    ASSERT_TRUE(rank.client().ReduceGradients(gradients.views()).ok());
    if (r == 1) return rank.client().Close("finished");
    const absl::Status status =
        rank.StepUntil(0, [](const BoundaryResult&) { return false; }).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(MissingRanks(status), ::testing::ElementsAre(RankId{1})) << status;
  });
}

TEST(ReplicasEndTest, ARankThatFinishedDoesNotWaitForOthersForLong) {
  StartedJob job("", {.options = WithReplicas});
  job.Run([&](int32_t r, TestRank& rank) {
    Gradients gradients(rank);
    ASSERT_TRUE(rank.client().ReduceGradients(gradients.views()).ok());
    if (r != 0) return;
    const absl::Time began = absl::Now();
    rank.client().Close("finished");
    EXPECT_LT(absl::Now() - began, absl::Seconds(5)) << "vote_deadline is 20 s";
  });
}

TEST(ReplicasTest, ARankThatDiedEndsItsEpGroupAtOnceAndNotTheOther) {
  StartedJob job("", {.options = WithReplicas});
  job.rank(1).Stop();
  const absl::Time began = absl::Now();
  job.Run([&](int32_t r, TestRank& rank) {
    if (r == 1) return;
    Gradients gradients(rank);
    const absl::Status reduced = rank.client().ReduceGradients(gradients.views());
    if (r >= 2) {
      EXPECT_TRUE(reduced.ok()) << reduced;
      return;
    }
    EXPECT_EQ(reduced.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(reduced.message()),
                AllOf(HasSubstr("ReduceGradients before the boundary of step 0 failed half-way: "),
                      HasSubstr("rank 1 is gone")));
    EXPECT_EQ(rank.client().BroadcastWeights(gradients.views()), reduced);
    EXPECT_EQ(rank.client().ExpertSquares(gradients.views()).status(), reduced);
    EXPECT_EQ(rank.Step(0).status(), reduced);
  });
  EXPECT_LT(absl::Now() - began, absl::Seconds(9)) << "nobody waited for the deadline of 10 s";
}

TEST(ReplicasTest, ARankThatDoesNotComeIsNamedAfterTheDeadline) {
  StartedJob job("", {.options = [](ClientOptions& options) {
                   WithReplicas(options);
                   options.vote_deadline = absl::Milliseconds(300);
                 }});
  Gradients gradients(job.rank(0));
  const absl::Status reduced = job.rank(0).client().ReduceGradients(gradients.views());
  EXPECT_EQ(reduced.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(reduced.message()),
              AllOf(HasSubstr("deadline passed"), HasSubstr("rank 1")));
}

TEST(ReplicasFaultTest, ARankThatFailsTellsTheOtherAlsoWhenThatIsFurther) {
  StartedJob job("", {.options = WithReplicas, .transport = OnRank<LossyTransport>(1)});
  const absl::Time began = absl::Now();
  job.Run([&](int32_t r, TestRank& rank) {
    if (r >= 2) return;
    Gradients gradients(rank);
    absl::Status status;
    for (int32_t i = 0; i < 2 && status.ok(); ++i) {  // rank 0 may be through with the first one
      status = rank.client().ReduceGradients(gradients.views());
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << "rank " << r << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                AnyOf(HasSubstr("rank 1 ended it"), HasSubstr("another checksum")));
  });
  EXPECT_LT(absl::Now() - began, absl::Seconds(9)) << "nobody waited for the deadline of 10 s";
}

TEST(ReplicasRefusalTest, WhatCannotBeIsRefusedByNameAndTheClientGoesOn) {
  StartedJob job("", {.options = WithReplicas});
  Client& client = job.rank(0).client();
  const auto refusal = [&](const std::function<void(ReplicaRows&)>& change,
                           void* stream = nullptr) {
    Gradients gradients(job.rank(0));
    change(gradients.views()[1]);
    return client.ReduceGradients(gradients.views(), stream);
  };
  EXPECT_EQ(refusal([](ReplicaRows& rows) { rows.base = nullptr; }),
            absl::InvalidArgumentError("tensor \"1.gradient\": base is null"));
  int stream = 0;
  EXPECT_EQ(refusal([](ReplicaRows&) {}, &stream).code(), absl::StatusCode::kFailedPrecondition);
  job.Run([](int32_t, TestRank& rank) {
    Gradients gradients(rank);
    EXPECT_TRUE(rank.client().ReduceGradients(gradients.views()).ok());
  });
}

TEST(ReplicasRefusalTest, DisabledClientsDoNothingUnlessThereAreReplicas) {
  setenv("EPLB_DISABLE", "1", 1);
  for (const bool replicas : {false, true}) {
    StartedJob job("", {.options = [&](ClientOptions& options) {
                     if (replicas) WithReplicas(options);
                   }});
    Gradients gradients(job.rank(0));
    Client& client = job.rank(0).client();  // alone: there is no rank to wait for
    const absl::Status reduced = client.ReduceGradients(gradients.views());
    EXPECT_EQ(reduced.ok(), !replicas) << reduced;
    EXPECT_EQ(client.BroadcastWeights(gradients.views()).ok(), !replicas);
    EXPECT_EQ(client.ExpertSquares(gradients.views()).status().code(),
              absl::StatusCode::kFailedPrecondition);
    if (!replicas) continue;
    EXPECT_THAT(std::string(reduced.message()),
                HasSubstr("ReduceGradients: layer 0: expert 0 has replicas, and with "
                          "EPLB_DISABLE=1 nothing is carried between them"));
  }
  unsetenv("EPLB_DISABLE");
}

}  // namespace
}  // namespace eplb
