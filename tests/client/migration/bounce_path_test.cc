#include "client/migration/bounce_path.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "client/migration/host_path.h"
#include "tests/client/migration/bounce_world.h"
#include "tests/client/migration/executor_contract.h"
#include "tests/client/migration/stubborn_queue.h"

namespace eplb {
namespace {

INSTANTIATE_TEST_SUITE_P(Bounce, TransportContractTest, ::testing::Values(&MakeBounceWorld));
INSTANTIATE_TEST_SUITE_P(Bounce, ExecutorContractTest,
                         ::testing::Values(ExecutorKind{"WithPrimary", MakeBounceWorld,
                                                        StateResidency::kWithPrimary}),
                         [](const auto& kind) { return kind.param.name; });

TEST(BouncePathTest, AbortWaitsForATransferWhoseChecksumsCouldNotBeBegun) {
  auto made =
      std::make_unique<StubbornQueue>(Stubbornness{.looks_per_transfer = 5, .fail_copies = true});
  StubbornQueue& queue = *made;
  const std::vector<std::byte> row(8);
  const RowMoves moves{
      .post_id = 1,
      .sends = {{.to = RankId{1}, .row = 3, .round = 0, .bytes = row, .staging_offset = 0}},
      .receives = {}};
  auto arena = StagingArena::Make(64);
  ASSERT_TRUE(arena.ok()) << arena.status();
  auto path = MakeBouncePath(MakeHostPath(*std::move(arena), {}), std::move(made));
  ASSERT_TRUE(path.ok()) << path.status();
  PostLedger ledger(moves);
  LinkSet links({});
  EXPECT_EQ((*path)->Open(moves, ledger, links), absl::InternalError("the copy kernel failed"));
  EXPECT_EQ(queue.num_under_way(), 1U);
  EXPECT_TRUE((*path)->Close(/*done=*/false).ok());
  EXPECT_EQ(queue.num_under_way(), 0U);
}

}  // namespace
}  // namespace eplb
