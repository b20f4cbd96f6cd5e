#include "client/rows/paths/nccl_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>

#include "tests/client/rows/paths/nccl_world.h"
#include "tests/client/rows/stubborn_queue.h"
#include "tests/client/rows/stuffed_link.h"

namespace eplb {
namespace {

INSTANTIATE_TEST_SUITE_P(NcclSmallPieces, TransportContractTest,
                         ::testing::Values(&MakeSmallPieceNcclWorld));
INSTANTIATE_TEST_SUITE_P(NcclLargePieces, TransportContractTest,
                         ::testing::Values(&MakeLargePieceNcclWorld));

NcclPathParts PartsOfOneRank() {
  const auto library = cuda::NcclLibrary::Load(EPLB_FAKE_NCCL);
  EXPECT_TRUE(library.ok()) << library.status();
  return {.library = *library,
          .device = std::nullopt,
          .self = RankId{0},
          .ranks = {RankId{0}},
          .pack_queue = cuda::MakeHostRowQueue(),
          .group_queue = cuda::MakeHostRowQueue(),
          .check_queue = cuda::MakeHostRowQueue(),
          .staging_bytes = 64};
}

TEST(NcclPathTest, NoneOfTheQueuesMayBeLeftOut) {
  for (const auto queue :
       {&NcclPathParts::pack_queue, &NcclPathParts::group_queue, &NcclPathParts::check_queue}) {
    NcclPathParts parts = PartsOfOneRank();
    (parts.*queue).reset();
    EXPECT_TRUE(absl::IsInvalidArgument(MakeNcclPath(std::move(parts)).status()));
  }
}

TEST(NcclPathTest, ARowWithoutBytesIsSentOnceItsAnnouncementHasLeft) {
  StuffedLink stuffed;
  const auto path = MakeNcclPath(PartsOfOneRank());
  ASSERT_TRUE(path.ok()) << path.status();
  const RowMoves moves = SendOne(RankId{1}, 1, {});
  TransferLedger ledger(moves);
  ASSERT_TRUE((*path)->Open(moves, ledger, stuffed.links()).ok());
  for (int turn = 0; turn < 3; ++turn) ASSERT_TRUE((*path)->Advance().ok());
  EXPECT_TRUE(stuffed.link().has_output());
  EXPECT_FALSE(ledger.complete()) << "after the post nobody would send what is left";
  stuffed.Read();
  stuffed.link().Flush();
  ASSERT_TRUE((*path)->Advance().ok());
  EXPECT_FALSE(stuffed.link().has_output());
  EXPECT_TRUE(ledger.complete());
  EXPECT_TRUE((*path)->Close(/*done=*/true).ok());
}

// A kernel of NCCL that began beside the training step's own collectives could wait for them while
// they wait for it.
TEST(NcclPathTest, PackingAndGroupsComeAfterTheTrainingStream) {
  NcclPathParts parts = PartsOfOneRank();
  auto pack = std::make_unique<StubbornQueue>(Stubbornness{});
  auto group = std::make_unique<StubbornQueue>(Stubbornness{});
  StubbornQueue* const queues[] = {pack.get(), group.get()};
  parts.pack_queue = std::move(pack);
  parts.group_queue = std::move(group);
  const auto path = MakeNcclPath(std::move(parts));
  ASSERT_TRUE(path.ok()) << path.status();
  int stream = 0;
  const RowMoves moves{.post_id = 1, .stream = &stream};
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
