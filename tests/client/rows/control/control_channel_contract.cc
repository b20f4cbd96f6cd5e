#include "tests/client/rows/control/control_channel_contract.h"

#include <gmock/gmock.h>

#include <atomic>
#include <limits>

#include "tests/client/rows/control/world.h"

namespace eplb {

TEST_P(ControlChannelContractTest, MinimumIsElementWiseInWorldsOfOneToTwentyRanks) {
  for (const int32_t world_size : {1, 2, 8, 9, 10, 20}) {
    Channels channels = Make(world_size);
    RunRanks(world_size, [&](int32_t rank) {
      for (int32_t call = 0; call < 20; ++call) {
        const std::vector<int64_t> values = {rank + call, -rank, int64_t{1} << (rank + 30), 7};
        const auto least = channels[rank]->AllReduceMin(values, kLong);
        ASSERT_TRUE(least.ok()) << least.status();
        EXPECT_THAT(*least, ::testing::ElementsAre(call, -(world_size - 1), int64_t{1} << 30, 7));
        ASSERT_TRUE(channels[rank]->Barrier(kLong).ok());
      }
      EXPECT_EQ(channels[rank]->rank().value, rank);
      EXPECT_EQ(channels[rank]->world_size(), world_size);
    });
  }
}

TEST_P(ControlChannelContractTest, SixtyFourValuesOfAnySizePassAndSixtyFiveAreRefused) {
  Channels channels = Make(3);
  RunRanks(3, [&](int32_t rank) {
    std::vector<int64_t> values(64, std::numeric_limits<int64_t>::max());
    values[rank] = std::numeric_limits<int64_t>::min();
    const auto least = channels[rank]->AllReduceMin(values, kLong);
    ASSERT_TRUE(least.ok()) << least.status();
    EXPECT_EQ((*least)[rank], std::numeric_limits<int64_t>::min());
    EXPECT_EQ((*least)[63], std::numeric_limits<int64_t>::max());
    const std::vector<int64_t> many(65, 0);
    EXPECT_EQ(channels[rank]->AllReduceMin(many, kLong).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(channels[rank]->AllReduceMin({}, kLong).status().code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(channels[rank]->Barrier(kLong).ok());  // a refused call breaks nothing
  });
}

TEST_P(ControlChannelContractTest, BarrierHoldsEveryRankUntilTheLastOneCame) {
  Channels channels = Make(4);
  std::atomic<int32_t> arrived{0};
  RunRanks(4, [&](int32_t rank) {
    ++arrived;
    ASSERT_TRUE(channels[rank]->Barrier(kLong).ok());
    EXPECT_EQ(arrived.load(), 4);
  });
}

TEST_P(ControlChannelContractTest, EveryRankNamesTheRanksThatAreGone) {
  for (const std::vector<int32_t>& dead :
       std::vector<std::vector<int32_t>>{{11}, {3}, {5, 10}, {4, 6, 7}}) {
    const int32_t world_size = 12;
    Channels channels = Make(world_size);
    for (const int32_t rank : dead) channels[rank].reset();
    std::vector<RankId> expected;
    expected.reserve(dead.size());
    for (const int32_t rank : dead) expected.push_back(RankId{rank});
    RunRanks(world_size, [&](int32_t rank) {
      if (channels[rank] == nullptr) return;
      const absl::Status status = channels[rank]->Barrier(kLong);
      ASSERT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_EQ(MissingRanks(status), expected) << "rank " << rank << ": " << status;
      EXPECT_EQ(channels[rank]->Barrier(kLong), status) << "a broken channel stays broken";
    });
  }
}

TEST_P(ControlChannelContractTest, EveryRankNamesTheRankThatDidNotCome) {
  const int32_t world_size = 12;
  for (const int32_t late : {9, 11, 4}) {
    Channels channels = Make(world_size);
    RunRanks(world_size, [&](int32_t rank) {
      if (rank == late) return;  // its channel lives, it just never votes
      const absl::Time start = absl::Now();
      const auto result = channels[rank]->AllReduceMin(std::vector<int64_t>{1}, kShort);
      ASSERT_EQ(result.status().code(), absl::StatusCode::kAborted);
      EXPECT_EQ(MissingRanks(result.status()), std::vector<RankId>{RankId{late}})
          << "rank " << rank << ": " << result.status();
      EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    });
    EXPECT_EQ(channels[late]->Barrier(kShort).code(), absl::StatusCode::kAborted);
  }
}

TEST_P(ControlChannelContractTest, RootThatDoesNotComeIsNamed) {
  Channels channels = Make(3);
  RunRanks(3, [&](int32_t rank) {
    if (rank == 0) return;
    const absl::Status status = channels[rank]->Barrier(kShort);
    EXPECT_EQ(MissingRanks(status), std::vector<RankId>{RankId{0}}) << status;
  });
}

TEST_P(ControlChannelContractTest, DifferentVerbsOrLengthsAreAnErrorOnEveryRank) {
  for (const bool other_verb : {true, false}) {
    Channels channels = Make(5);
    RunRanks(5, [&](int32_t rank) {
      const std::vector<int64_t> values(rank == 3 ? 2 : 1, 0);
      const absl::Status status = other_verb && rank == 3
                                      ? channels[rank]->Barrier(kLong)
                                      : channels[rank]->AllReduceMin(values, kLong).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << "rank " << rank;
      EXPECT_FALSE(MissingRanks(status).empty()) << status;
    });
  }
}

TEST_P(ControlChannelContractTest, FarewellHoldsEveryRankUntilTheLastOneCame) {
  Channels channels = Make(6);
  std::atomic<int32_t> arrived = 0;
  RunRanks(6, [&](int32_t rank) {
    ++arrived;
    EXPECT_TRUE(channels[rank]->Farewell(kLong).ok());
    EXPECT_EQ(arrived, 6);
  });
}

TEST_P(ControlChannelContractTest, WhoGoesOnIsToldWhoHasClosed) {
  for (const int32_t closed : {0, 1, 4}) {  // the root, an inner rank and a leaf
    Channels channels = Make(6);
    RunRanks(6, [&](int32_t rank) {
      if (rank == closed) {
        EXPECT_FALSE(channels[rank]->Farewell(kLong).ok());
        return;
      }
      const absl::Status status =
          channels[rank]->AllReduceMin(std::vector<int64_t>{1}, kLong).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
      EXPECT_THAT(MissingRanks(status), ::testing::ElementsAre(RankId{closed})) << status;
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("it has closed"));
    });
  }
}

TEST_P(ControlChannelContractTest, AnEarlyDeathIsNotWaitedOut) {
  Channels channels = Make(4);
  channels[2].reset();
  const absl::Time start = absl::Now();
  RunRanks(4, [&](int32_t rank) {
    if (rank != 2) {
      EXPECT_FALSE(channels[rank]->Barrier(absl::Hours(1)).ok());
    }
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

}  // namespace eplb
