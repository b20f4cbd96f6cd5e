#include "client/migration/nccl_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "tests/client/migration/nccl_world.h"
#include "tests/client/migration/stubborn_queue.h"

namespace eplb {
namespace {

INSTANTIATE_TEST_SUITE_P(NcclSmallPieces, TransportContractTest,
                         ::testing::Values(&MakeSmallPieceNcclWorld));
INSTANTIATE_TEST_SUITE_P(NcclLargePieces, TransportContractTest,
                         ::testing::Values(&MakeLargePieceNcclWorld));

// A kernel of NCCL that began beside the training step's own collectives could wait for them while
// they wait for it.
TEST(NcclPathTest, PackingAndGroupsComeAfterTheTrainingStream) {
  const auto library = cuda::NcclLibrary::Load(EPLB_FAKE_NCCL);
  ASSERT_TRUE(library.ok()) << library.status();
  auto pack = std::make_unique<StubbornQueue>(Stubbornness{});
  auto group = std::make_unique<StubbornQueue>(Stubbornness{});
  StubbornQueue* const queues[] = {pack.get(), group.get()};
  auto path = MakeNcclPath({.library = *library,
                            .settings = {},
                            .device = std::nullopt,
                            .self = RankId{0},
                            .ranks = {RankId{0}},
                            .pack_queue = std::move(pack),
                            .group_queue = std::move(group),
                            .check_queue = cuda::MakeHostRowQueue(),
                            .staging_bytes = 64});
  ASSERT_TRUE(path.ok()) << path.status();
  int stream = 0;
  const RowMoves moves{.post_id = 1, .sends = {}, .receives = {}, .stream = &stream};
  TransferLedger ledger(moves);
  LinkSet links({});
  ASSERT_TRUE((*path)->Open(moves, ledger, links).ok());
  for (const StubbornQueue* queue : queues) {
    EXPECT_THAT(queue->followed(), ::testing::ElementsAre(&stream));
  }
  EXPECT_TRUE((*path)->Close(/*done=*/true).ok());
}

}  // namespace
}  // namespace eplb
