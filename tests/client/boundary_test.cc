#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/client/rows/control/world.h"
#include "tests/client/test_job.h"

namespace eplb {

// Client::RegisterExperts.

namespace {

using ::testing::Each;

TEST(RegistrationTest, TensorsThatDifferStopEveryRankNamingThem) {
  std::vector<absl::Status> statuses(kTestRanks);
  auto all_gathers = MakeThreadAllGathers(kTestRanks);
  RunRanks(kTestRanks, [&](int32_t rank) {
    const auto i = static_cast<size_t>(rank);
    auto client = Client::Connect(TestOptions(rank, ""), all_gathers[i]).value();
    std::vector<std::byte> memory(768);  // 3 layers of 2 rows
    std::vector<ExpertTensorView> tensors;
    for (int32_t layer = 0; layer < 3; ++layer) {
      ExpertTensorView view;
      view.name = absl::StrCat("w", layer);
      view.layer = layer;
      view.base = &memory[static_cast<size_t>(layer) * 256U];
      view.num_rows = 2;
      view.row_bytes = rank == 1 ? 128 : 64;
      view.row_stride = 128;
      tensors.push_back(view);
    }
    statuses[i] = client->RegisterExperts(tensors);
  });
  EXPECT_EQ(statuses[0].message(),
            "tensors: tensor 0 differs: rank 0 has layer 0 weight w0 row_bytes 64, rank 1 has "
            "layer 0 weight w0 row_bytes 128");
  EXPECT_THAT(statuses, Each(statuses[0]));
}

TEST(RegistrationTest, ASecondOneIsRefusedAndTheFirstOneStays) {
  StartedJob job("");
  job.Run([](int32_t, TestRank& rank) {
    EXPECT_EQ(rank.client().RegisterExperts({}),
              absl::FailedPreconditionError("RegisterExperts was called twice"));
    EXPECT_TRUE(rank.Step(0).ok());
    EXPECT_EQ(rank.WrongSlots(), 0);
  });
}

TEST(RegistrationTest, ATensorThatCannotBeIsRefusedOnEveryRankByName) {
  TestJob job("", {.tensors = [](TestRank& rank, std::vector<ExpertTensorView>& tensors) {
                if (rank.rank() == 2) tensors[1].base = nullptr;
              }});
  EXPECT_EQ(job.started(),
            absl::FailedPreconditionError(
                "tensors: rank 2 cannot start: tensor \"layers.0.m\": base is null"));
}

TEST(RegistrationTest, NoTensorsAtAllAreRefused) {
  TestJob job(
      "", {.tensors = [](TestRank&, std::vector<ExpertTensorView>& tensors) { tensors.clear(); }});
  EXPECT_EQ(job.started(), absl::InvalidArgumentError("no expert tensors are registered"));
}

}  // namespace

}  // namespace eplb
