// The nccl path where groups are operations of streams: what is queued too early or not waited for
// comes at the wrong time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "client/rows/paths/nccl_memory.h"
#include "client/rows/row_message.h"
#include "tests/client/rows/executor_contract.h"
#include "tests/client/rows/random_traffic.h"
#include "tests/client/rows/replica_contract.h"
#include "tests/gpu/counting_queue.h"
#include "tests/gpu/nccl_stream_world.h"
#include "tests/support/fake_cuda/fake_cuda.h"

namespace eplb {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

INSTANTIATE_TEST_SUITE_P(NcclSmallPieces, TransportContractTest,
                         ::testing::Values(TransportKind(&MakeSmallPieceStreamWorld,
                                                         &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(NcclLargePieces, TransportContractTest,
                         ::testing::Values(TransportKind(&MakeLargePieceStreamWorld,
                                                         &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(
    Hybrid, TransportContractTest,
    ::testing::Values(TransportKind(&MakeHybridStreamWorld<&HostsOfTwo>, &MakeDeviceQueue),
                      TransportKind(&MakeHybridStreamWorld<&TwoHostsInTurns>, &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(Nccl, ReplicaContractTest,
                         ::testing::Values(TransportKind(&MakeSmallPieceStreamWorld,
                                                         &MakeDeviceQueue)));
INSTANTIATE_TEST_SUITE_P(
    Streams, ExecutorContractTest,
    ::testing::Values(ExecutorKind{"NcclEveryReplica", MakeSmallPieceStreamWorld,
                                   StateResidency::kEveryReplica, &MakeDeviceQueue},
                      ExecutorKind{"NcclWithPrimary", MakeLargePieceStreamWorld,
                                   StateResidency::kWithPrimary, &MakeDeviceQueue}),
    [](const auto& kind) { return kind.param.name; });

std::string LogOfFake() { return OfFakeNccl<decltype(fakeNcclGetLog)>("fakeNcclGetLog")(); }

// Pieces of the tests' size in groups that were begun; of one end with its words in the log.
size_t NumPieces(std::string_view end = "") {
  const std::string piece = absl::StrCat(std::string(end), ":65536");
  const std::string log = LogOfFake();
  size_t count = 0;
  for (size_t at = log.find(piece); at != std::string::npos; at = log.find(piece, at + 1)) ++count;
  return count;
}

class NcclStreamsTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRowBytes = 300'000;
  static constexpr int64_t kStagingBytes = int64_t{1} << 20;

  NcclStreamsTest() : memory_(&MakeDeviceQueue) { fake_cuda::SetSeed(0); }
  ~NcclStreamsTest() override { EXPECT_EQ(FakeNcclViolations(), ""); }

  // Two ranks whose notes and passes over memory are known.
  Transports MakeCountedWorld(int64_t piece_bytes = 65'536) {
    StreamsOfQueues().streams.clear();
    return MakeNcclWorld({.world_size = 2,
                          .staging_bytes = kStagingBytes,
                          .piece_bytes = piece_bytes,
                          .device = 0,
                          .make_queue = &MakeCountingQueue,
                          .on_note = [this](std::string_view line) {
                            const std::lock_guard<std::mutex> lock(notes_mutex_);
                            notes_.emplace_back(line);
                          }});
  }

  enum StreamOfRank : size_t { kToPack, kForGroups, kToCheck };
  // Streams of the ranks of the world that was made last, in no order.
  static std::vector<cudaStream_t> StreamsOfRanks(StreamOfRank stream) {
    std::vector<cudaStream_t> found;
    for (const auto& [thread, streams] : StreamsOfQueues().streams) {
      EXPECT_EQ(streams.size(), 3U) << "to pack, for groups and to check";
      found.push_back(streams.at(stream));
    }
    return found;
  }
  static std::vector<int64_t> NumEnqueued(StreamOfRank stream) {
    std::vector<int64_t> counts;
    for (const cudaStream_t of_rank : StreamsOfRanks(stream)) {
      counts.push_back(fake_cuda::UsageOf(of_rank).num_enqueued);
    }
    return counts;
  }
  // On how many of them something was put since `before` was taken.
  static size_t NumFedSince(const std::vector<int64_t>& before, StreamOfRank stream) {
    const std::vector<int64_t> now = NumEnqueued(stream);
    size_t count = 0;
    for (size_t i = 0; i < now.size(); ++i) count += now[i] > before[i] ? 1 : 0;
    return count;
  }

  // A row from rank 1 to rank 0, which must arrive.
  void MoveOne(const Transports& transports, uint64_t post_id, std::span<std::byte> live) {
    const auto bytes = static_cast<int64_t>(live.size());
    const std::vector<Ticket> tickets = {
        MustPost(*transports[0], ReceiveOne(RankId{1}, post_id, bytes)),
        MustPost(*transports[1], SendOne(RankId{0}, post_id, live))};
    MustDrive(transports, tickets);
  }

  // Bytes that were read or written for a byte of a row, with the commit's copy into its slot.
  double PassesOfOneRow(const Transports& transports) {
    std::mt19937 random(10);
    const std::vector<std::byte> row = RandomBytes(random, kStagingBytes);
    const std::span<std::byte> live = memory_.Put(row);
    const std::span<std::byte> slot = memory_.Put(std::vector<std::byte>(kStagingBytes));
    const auto commits = MakeCountingQueue();
    const auto count = [] {
      const QueueBytes& bytes = BytesOfQueues();
      return bytes.read + bytes.written +
             OfFakeNccl<decltype(fakeNcclBytesPassed)>("fakeNcclBytesPassed")();
    };
    MoveOne(transports, 1, live);  // after it no pair is still warming
    const int64_t before = count();
    MoveOne(transports, 2, live);
    const cuda::RowCopy commit{.source = transports[0]->staging().data(),
                               .destination = slot.data(),
                               .num_bytes = kStagingBytes};
    const auto batch = commits->Copy({&commit, 1});
    EXPECT_TRUE(batch.ok()) << batch.status();
    EXPECT_TRUE(AwaitBatch(*commits, *batch, MonotonicNow() + absl::Seconds(30)).ok());
    EXPECT_TRUE(memory_.Holds(slot, row));
    return static_cast<double>(count() - before) / kStagingBytes;
  }

  QueueMemory memory_;
  std::mutex notes_mutex_;
  std::vector<std::string> notes_;
};

// A kernel of NCCL that began beside the training step's own collectives could wait for them while
// they wait for it.
TEST_F(NcclStreamsTest, GroupsOfARankBeginAfterItsTrainingStream) {
  const std::span<std::byte> live = memory_.Put(std::vector<std::byte>(kRowBytes));
  const Transports transports = MakeCountedWorld();
  const std::string_view ends[] = {"receive=1", "send=0"};
  uint64_t post_id = 0;
  for (const size_t late : {0, 1}) {
    SCOPED_TRACE(late);
    const size_t num_pieces = NumPieces(ends[late]);
    std::atomic<bool> step_may_end = false;
    const cudaStream_t training = MakeTrainingStream();
    fake_cuda::EnqueueExternal(training, [&] { return step_may_end.load(); });
    std::vector<RowMoves> moves = {ReceiveOne(RankId{1}, ++post_id, kRowBytes),
                                   SendOne(RankId{0}, post_id, live)};
    moves[late].stream = training;
    const std::vector<Ticket> tickets = {MustPost(*transports[0], moves[0]),
                                         MustPost(*transports[1], moves[1])};
    // The late receiver's group is on its stream, as the sender's; a late sender still packs.
    const StreamOfRank stream = late == 0 ? kForGroups : kToPack;
    const size_t num_to_feed = late == 0 ? 2 : 1;
    const std::vector<int64_t> before = NumEnqueued(stream);
    const absl::Time limit = MonotonicNow() + absl::Seconds(30);
    for (int32_t turn = 0; turn < 300;) {
      for (size_t rank = 0; rank < 2; ++rank) {
        const auto progress = transports[rank]->Poll(tickets[rank], absl::ZeroDuration());
        ASSERT_TRUE(progress.ok() && !progress->done) << progress.status();
      }
      if (NumFedSince(before, stream) == num_to_feed) ++turn;
      ASSERT_LT(MonotonicNow(), limit) << "no work was put on the streams";
    }
    EXPECT_EQ(NumPieces(ends[late]), num_pieces);
    step_may_end = true;
    MustDrive(transports, tickets);
  }
}

TEST_F(NcclStreamsTest, ARowIsReadOnceTheTrainingStreamHasWrittenIt) {
  std::mt19937 random(9);
  const Transports transports = MakeCountedWorld();
  const std::vector<std::byte> row = RandomBytes(random, kRowBytes);
  const std::span<std::byte> written = memory_.Put(row);
  const std::span<std::byte> live = memory_.Put(std::vector<std::byte>(kRowBytes));
  std::atomic<bool> step_may_end = false;
  const cudaStream_t training = MakeTrainingStream();
  fake_cuda::EnqueueExternal(training, [&] { return step_may_end.load(); });
  ASSERT_EQ(cudaMemcpyAsync(live.data(), written.data(), live.size(), cudaMemcpyDefault, training),
            cudaSuccess);
  RowMoves sends = SendOne(RankId{0}, 1, live);
  sends.stream = training;
  const std::vector<Ticket> tickets = {
      MustPost(*transports[0], ReceiveOne(RankId{1}, 1, kRowBytes)),
      MustPost(*transports[1], sends)};
  const std::vector<int64_t> before = NumEnqueued(kToPack);
  const absl::Time limit = MonotonicNow() + absl::Seconds(30);
  for (int32_t turn = 0; turn < 100;) {
    ASSERT_TRUE(transports[1]->Poll(tickets[1], absl::ZeroDuration()).ok());
    if (NumFedSince(before, kToPack) == 1) ++turn;
    ASSERT_LT(MonotonicNow(), limit) << "nothing was packed";
  }
  step_may_end = true;
  MustDrive(transports, tickets);
  EXPECT_TRUE(memory_.Holds(transports[0]->staging().first(row.size()), row));
}

// Pack: read and written; NCCL: read, and written at the other end; sum; commit: read and written.
TEST_F(NcclStreamsTest, SevenPassesOverMemoryMoveARow) {
  const Transports transports = MakeCountedWorld();
  EXPECT_DOUBLE_EQ(PassesOfOneRow(transports), 7);
  EXPECT_THAT(notes_, IsEmpty());
}

// Staging is the peer path's, and registered.
TEST_F(NcclStreamsTest, SevenPassesOverMemoryMoveARowBetweenHosts) {
  EXPECT_DOUBLE_EQ(PassesOfOneRow(MakeHybridWorldOver({.world_size = 2,
                                                       .staging_bytes = kStagingBytes,
                                                       .host_of = &TwoHostsInTurns,
                                                       .piece_bytes = 65'536,
                                                       .device = 0,
                                                       .make_queue = &MakeCountingQueue})),
                   7);
}

// Sum at the source; NCCL three at each end; sum; commit two.
TEST_F(NcclStreamsTest, WithoutRegistrationAPieceOfOneRowIsSentFromTheRow) {
  struct Case {
    const char* variable;
    const char* value;
    const char* notes[2];
  };
  for (const auto& [variable, value, notes] :
       {Case{"NCCL_LOCAL_REGISTER", "0", {"NCCL_LOCAL_REGISTER=0", "NCCL_LOCAL_REGISTER=0"}},
        // A rank that cannot register keeps the others from it.
        Case{"EPLB_FAKE_NCCL_FAULTS",
             "rank=1,kind=register_error",
             {"without registering its memory: ncclCommRegister: internal",
              "without registering its memory: rank 1 has not"}},
        // The memory is then the queue's.
        Case{"EPLB_FAKE_NCCL_FAULTS",
             "kind=mem_error",
             {"ncclMemAlloc: unhandled cuda error", "ncclMemAlloc: unhandled cuda error"}}}) {
    SCOPED_TRACE(value);
    notes_.clear();
    setenv(variable, value, 1);
    const Transports transports = MakeCountedWorld();
    unsetenv(variable);
    EXPECT_DOUBLE_EQ(PassesOfOneRow(transports), 10);
    EXPECT_THAT(notes_, UnorderedElementsAre(HasSubstr(notes[0]), HasSubstr(notes[1])));
  }
}

// In case the groups did not end because of it.
TEST_F(NcclStreamsTest, AfterTwoCommunicatorsWhoseGroupsDidNotEndNothingIsRegistered) {
  const std::span<std::byte> live = memory_.Put(std::vector<std::byte>(kRowBytes));
  setenv("EPLB_FAKE_NCCL_FAULTS", "rank=0,group=1,kind=hang", 1);
  const Transports transports = MakeCountedWorld();
  for (uint64_t post_id = 1; post_id <= 2; ++post_id) {
    RowMoves receives = ReceiveOne(RankId{1}, post_id, kRowBytes);
    RowMoves sends = SendOne(RankId{0}, post_id, live);
    receives.deadline = sends.deadline = MonotonicNow() + absl::Seconds(3);
    const std::vector<Ticket> tickets = {MustPost(*transports[0], receives),
                                         MustPost(*transports[1], sends)};
    const auto results = Drive(transports, tickets);
    EXPECT_TRUE(absl::IsDeadlineExceeded(results[0].status())) << results[0].status();
    for (const auto& transport : transports) {
      EXPECT_TRUE(transport->Abort().ok());
      EXPECT_TRUE(transport->DropShared().ok());
    }
    EXPECT_THAT(notes_, IsEmpty());
  }
  unsetenv("EPLB_FAKE_NCCL_FAULTS");
  MoveOne(transports, 3, live);
  EXPECT_THAT(notes_, Contains(HasSubstr("groups did not end with it")));
  // For good: groups that end without it say nothing of it.
  for (const auto& transport : transports) {
    EXPECT_TRUE(transport->Abort().ok());
    EXPECT_TRUE(transport->DropShared().ok());
  }
  const std::string log = LogOfFake();
  MoveOne(transports, 4, live);
  EXPECT_THAT(LogOfFake().substr(log.size()), Not(HasSubstr("registered")));
}

// NCCL leaves open what it does where one end of a transfer is registered.
TEST_F(NcclStreamsTest, StagingOfAnotherPathIsRegisteredWithTheBuffersOrNeither) {
  const auto queue = MakeDeviceQueue();
  const auto library = cuda::NcclLibrary::Load(EPLB_FAKE_NCCL);
  ASSERT_TRUE(library.ok()) << library.status();
  struct Case {
    bool is_anothers;
    bool is_registrable;
    size_t num_ranges;
  };
  for (const Case& c : {Case{false, false, 1}, Case{true, false, 0}, Case{true, true, 2}}) {
    NcclMemoryOptions options{.library = *library,
                              .device = 0,
                              .staging_bytes = kStagingBytes,
                              .piece_bytes = 65'536,
                              .scratch_bytes = 128,
                              .is_staging_registrable = c.is_registrable,
                              .on_note = [](std::string_view line) { ADD_FAILURE() << line; }};
    if (c.is_anothers) {
      auto staging = queue->Allocate(kStagingBytes);
      ASSERT_TRUE(staging.ok()) << staging.status();
      options.staging = *std::move(staging);
    }
    const auto memory = NcclMemory::Make(std::move(options), *queue);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(memory->registrable().size(), c.num_ranges);
    EXPECT_EQ(memory->staging().size(), size_t{kStagingBytes});
    EXPECT_EQ(memory->packed(0).size(), 65'536U);
  }
}

TEST_F(NcclStreamsTest, MigrationsAllocateNothing) {
  std::mt19937 random(12);
  constexpr uint64_t kPosts = 4;
  const Transports transports = MakeSmallPieceStreamWorld(2, kStagingBytes);
  std::vector<Traffic> posts;
  for (uint64_t post_id = 1; post_id <= kPosts; ++post_id) {
    posts.push_back(RandomTraffic(random, memory_, 2, post_id, kStagingBytes));
  }
  const int64_t allocations = fake_cuda::NumAllocations();
  const std::string log = LogOfFake();
  for (const Traffic& traffic : posts) {
    const std::vector<Ticket> tickets = {MustPost(*transports[0], traffic.moves[0]),
                                         MustPost(*transports[1], traffic.moves[1])};
    MustDrive(transports, tickets);
  }
  EXPECT_EQ(fake_cuda::NumAllocations(), allocations);
  EXPECT_THAT(LogOfFake().substr(log.size()), Not(HasSubstr("registered")));
}

// A sum that takes long keeps no group from the network.
TEST_F(NcclStreamsTest, GroupsDoNotWaitForTheSumsOfThoseBefore) {
  constexpr size_t kPieces = 8;
  const std::span<std::byte> live = memory_.Put(std::vector<std::byte>(kPieces * 65'536));
  const Transports transports = MakeCountedWorld();
  std::atomic<bool> sums_may_run = false;
  for (const cudaStream_t stream : StreamsOfRanks(kToCheck)) {
    fake_cuda::EnqueueExternal(stream, [&] { return sums_may_run.load(); });
  }
  const size_t num_pieces = NumPieces();
  const std::vector<Ticket> tickets = {
      MustPost(*transports[0], ReceiveOne(RankId{1}, 1, std::ssize(live))),
      MustPost(*transports[1], SendOne(RankId{0}, 1, live))};
  const absl::Time limit = MonotonicNow() + absl::Seconds(30);
  bool sent = false;
  while (!sent && MonotonicNow() < limit) {
    for (size_t rank = 0; rank < 2; ++rank) {
      const auto progress = transports[rank]->Poll(tickets[rank], absl::ZeroDuration());
      ASSERT_TRUE(progress.ok()) << progress.status();
      sent = rank == 1 && progress->done;
    }
  }
  EXPECT_TRUE(sent);
  for (int32_t turn = 0; turn < 300; ++turn) {
    const auto progress = transports[0]->Poll(tickets[0], absl::ZeroDuration());
    ASSERT_TRUE(progress.ok() && !progress->done) << "nothing was summed";
  }
  EXPECT_EQ(NumPieces() - num_pieces, 2 * kPieces);
  sums_may_run = true;
  MustDrive(transports, tickets);
}

}  // namespace
}  // namespace eplb
