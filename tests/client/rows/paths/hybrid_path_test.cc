#include "client/rows/paths/hybrid_path.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

#include "base/monotonic_clock.h"
#include "tests/client/rows/paths/hybrid_world.h"
#include "tests/client/rows/random_traffic.h"
#include "tests/support/fake_nccl/fake_nccl.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;

INSTANTIATE_TEST_SUITE_P(Hybrid, TransportContractTest,
                         ::testing::Values(&MakeHybridWorld<&HostsOfTwo>,
                                           &MakeHybridWorld<&ThreeAndTheRest>,
                                           &MakeHybridWorld<&TwoAloneAndTheRest>,
                                           &MakeHybridWorld<&TwoHostsInTurns>));

// ---- which way rows go ----

template <class Function>
Function* FunctionOfFake(const char* name) {
  void* const library = dlopen(EPLB_FAKE_NCCL, RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Bytes that NCCL has sent since the log was cleared, by sender and receiver.
std::map<std::pair<int32_t, int32_t>, int64_t> SentByNccl() {
  std::map<std::pair<int32_t, int32_t>, int64_t> sent;
  const std::string log = FunctionOfFake<decltype(fakeNcclGetLog)>("fakeNcclGetLog")();
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    int32_t rank = -1;
    for (const absl::string_view word : absl::StrSplit(line, ' ')) {
      const std::pair<std::string, std::string> entry =
          absl::StrSplit(word, absl::MaxSplits('=', 1));
      if (entry.first == "rank") {
        EXPECT_TRUE(absl::SimpleAtoi(entry.second, &rank)) << line;
      }
      if (entry.first != "send") continue;
      const std::pair<std::string, std::string> send = absl::StrSplit(entry.second, ':');
      int32_t peer = -1;
      int64_t bytes = -1;
      EXPECT_TRUE(absl::SimpleAtoi(send.first, &peer) && absl::SimpleAtoi(send.second, &bytes))
          << line;
      sent[{rank, peer}] += bytes;
    }
  }
  return sent;
}

struct Grouping {
  const char* name;
  HostOf host_of;

  // In messages.
  friend void PrintTo(const Grouping& grouping, std::ostream* out) { *out << grouping.name; }
};

class HybridTrafficTest : public ::testing::TestWithParam<Grouping> {
 protected:
  static constexpr int32_t kWorld = 4;
  static constexpr int64_t kStaging = 1'500'000;

  HybridTrafficTest()
      : transports_(MakeHybridWorldOver(
            {.world_size = kWorld, .staging_bytes = kStaging, .host_of = GetParam().host_of})) {}

  static bool ShareAHost(int32_t a, int32_t b) {
    return GetParam().host_of(a) == GetParam().host_of(b);
  }

  // Every rank on its own thread, until its post is done; staging is then as it should be.
  void Carry(const Traffic& traffic) {
    for (auto& transport : transports_) memory_.Fill(transport->staging(), kOld);
    RunRanks(kWorld, [&](int32_t rank) {
      Transport& transport = *transports_[rank];
      const auto progress = Finish(transport, MustPost(transport, traffic.moves[rank]));
      ASSERT_TRUE(progress.ok()) << progress.status();
    });
    for (int32_t rank = 0; rank < kWorld; ++rank) {
      const std::span<std::byte> staging = transports_[rank]->staging();
      for (const auto& [offset, bytes] : traffic.padding[rank]) {
        memory_.Fill(staging.subspan(static_cast<size_t>(offset), static_cast<size_t>(bytes)),
                     kOld);
      }
      EXPECT_TRUE(memory_.Holds(staging, traffic.staging[rank])) << "rank " << rank;
    }
  }

  QueueMemory memory_;
  Transports transports_;
};

TEST_P(HybridTrafficTest, RowsOfAHostNeverGoByNcclAndRowsBetweenHostsNeverByPeer) {
  const auto clear_log = FunctionOfFake<decltype(fakeNcclClearLog)>("fakeNcclClearLog");
  int32_t num_local = 0;
  int32_t num_remote = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<uint32_t>(seed));
    const Traffic traffic = RandomTraffic(random, memory_, kWorld, /*post_id=*/seed, kStaging);
    clear_log();
    Carry(traffic);
    auto sent = SentByNccl();
    for (int32_t rank = 0; rank < kWorld; ++rank) {
      for (const RowReceive& row : traffic.moves[rank].receives) {
        const int32_t from = row.from.value;
        const bool local = ShareAHost(rank, from);
        (local ? num_local : num_remote) += 1;
        // The padding of a row to 64 bytes may be sent as well.
        if (!local) sent[{from, rank}] -= row.num_bytes;
      }
    }
    for (const auto& [pair, surplus] : sent) {
      EXPECT_FALSE(ShareAHost(pair.first, pair.second)) << pair.first << " to " << pair.second;
      EXPECT_GE(surplus, 0) << pair.first << " to " << pair.second;
      EXPECT_LT(surplus, 64 * 24) << pair.first << " to " << pair.second;
    }
  }
  EXPECT_GT(num_local, 0);
  EXPECT_GT(num_remote, 0);
}

INSTANTIATE_TEST_SUITE_P(Groupings, HybridTrafficTest,
                         ::testing::Values(Grouping{"HostsOfTwo", &HostsOfTwo},
                                           Grouping{"ThreeAndOne", &ThreeAndTheRest},
                                           Grouping{"OneOneTwo", &TwoAloneAndTheRest},
                                           Grouping{"TwoInTurns", &TwoHostsInTurns}),
                         [](const auto& grouping) { return grouping.param.name; });

TEST(HybridPathTest, NcclConnectsNoPairOfAHost) {
  cuda::NcclLibrary::Load(EPLB_FAKE_NCCL).IgnoreError();
  FunctionOfFake<decltype(fakeNcclClearLog)>("fakeNcclClearLog")();
  const Transports transports =
      MakeHybridWorldOver({.world_size = 5, .staging_bytes = 64, .host_of = &HostsOfTwo});
  std::set<std::pair<int32_t, int32_t>> connected;
  for (const auto& [pair, bytes] : SentByNccl()) connected.insert(pair);
  std::set<std::pair<int32_t, int32_t>> expected;
  for (int32_t a = 0; a < 5; ++a) {
    for (int32_t b = 0; b < 5; ++b) {
      if (HostsOfTwo(a) != HostsOfTwo(b)) expected.insert({a, b});
    }
  }
  EXPECT_EQ(connected, expected);
}

TEST(HybridPathTest, ALaterRoundInsideAHostDoesNotWaitForAnEarlierOneBetweenHosts) {
  Transports transports;
  {
    // Rank 0's first group with a row; before it rank 2 is connected, to and from.
    setenv("EPLB_FAKE_NCCL_FAULTS", "rank=0,group=2,kind=hang", 1);
    transports =
        MakeHybridWorldOver({.world_size = 3, .staging_bytes = 256, .host_of = &HostsOfTwo});
    unsetenv("EPLB_FAKE_NCCL_FAULTS");
  }
  const std::vector<std::byte> row(64, std::byte{7});
  RowMoves sends = SendOne(RankId{2}, 1, row);
  sends.sends.push_back({.to = RankId{1}, .row = 1, .round = 1, .bytes = row});
  RowMoves local = ReceiveOne(RankId{0}, 1, 64);
  local.receives[0].row = 1;
  local.receives[0].round = 1;
  const Ticket remote_ticket = MustPost(*transports[2], ReceiveOne(RankId{0}, 1, 64));
  const Ticket local_ticket = MustPost(*transports[1], local);
  const Ticket send_ticket = MustPost(*transports[0], sends);
  absl::StatusOr<Progress> arrived = Progress{};
  while (arrived.ok() && !arrived->done) {
    for (const auto& [rank, ticket] : {std::pair(0, send_ticket), std::pair(2, remote_ticket)}) {
      const auto progress = transports[rank]->Poll(ticket, absl::ZeroDuration());
      ASSERT_TRUE(progress.ok()) << progress.status();
      EXPECT_FALSE(progress->done);
    }
    arrived = transports[1]->Poll(local_ticket, absl::ZeroDuration());
  }
  ASSERT_TRUE(arrived.ok()) << arrived.status();
  EXPECT_TRUE(std::equal(row.begin(), row.end(), transports[1]->staging().begin()));

  // The group never ends: its communicator is given up, and the next post makes another.
  for (auto& transport : transports) EXPECT_TRUE(transport->Abort().ok());
  EXPECT_FALSE(transports[0]->is_whole());
  for (auto& transport : transports) EXPECT_TRUE(transport->DropShared().ok());
  sends.post_id = local.post_id = 2;
  const std::vector<Ticket> tickets = {MustPost(*transports[0], sends),
                                       MustPost(*transports[1], local),
                                       MustPost(*transports[2], ReceiveOne(RankId{0}, 2, 64))};
  MustDrive(transports, tickets);
}

// A path that is destroyed while NCCL's abort may not have returned; `abort`: how long that
// takes.
bool IsStagingFreedAfter(absl::Duration abort, absl::Duration abort_timeout) {
  const std::string faults = absl::StrCat("kind=slow_abort,ms=", absl::ToInt64Milliseconds(abort));
  setenv("EPLB_FAKE_NCCL_FAULTS", faults.c_str(), 1);
  const auto library = cuda::NcclLibrary::Load(EPLB_FAKE_NCCL);
  std::vector<std::byte> staging(64);
  bool freed = false;
  auto path = MakeNcclPath(
      {.library = *library,
       .settings = {.piece_bytes = 4096},
       .device = std::nullopt,
       .self = RankId{0},
       .ranks = {RankId{0}, RankId{1}},
       .pack_queue = cuda::MakeHostRowQueue(),
       .group_queue = cuda::MakeHostRowQueue(),
       .check_queue = cuda::MakeHostRowQueue(),
       .staging = cuda::RowBuffer{.owner = {staging.data(), [&freed](auto*) { freed = true; }},
                                  .bytes = staging},
       .abort_timeout = abort_timeout});
  const RowMoves moves{.post_id = 1};
  TransferLedger ledger(moves);
  LinkSet links({});
  if (!(*path)->Open(moves, ledger, links).ok()) std::abort();
  path->reset();
  return freed;
}

// Each in a process of its own, for what is never freed is a leak.
TEST(HybridPathDeathTest, StagingIsKeptWhereNcclMayStillWriteAndFreedElse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(IsStagingFreedAfter(absl::Minutes(10), absl::Milliseconds(10)) ? 1 : 0),
              ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::_Exit(IsStagingFreedAfter(absl::ZeroDuration(), absl::Minutes(1)) ? 0 : 1),
              ::testing::ExitedWithCode(0), "");
}

// ---- what the path makes of its two ----

class ScriptedPath : public RowPath {
 public:
  struct Script {
    absl::Status closed, dropped;
    bool busy = false;
    bool whole = true;
    std::string waits_for;
    // Arguments of the calls.
    std::vector<bool> closes;
    int32_t num_drops = 0;
  };
  ScriptedPath(Script& script, std::span<std::byte> staging) : script_(script), staging_(staging) {}

  std::string_view name() const override { return "scripted"; }
  std::span<std::byte> staging() override { return staging_; }
  absl::Status Open(const RowMoves&, TransferLedger&, LinkSet&) override { return {}; }
  absl::StatusOr<bool> Advance() override { return false; }
  bool busy() const override { return script_.busy; }
  std::string Waiting() const override { return script_.waits_for; }
  absl::StatusOr<std::span<std::byte>> Place(const PeerLink&, const RowMessage&) override {
    return staging_;
  }
  absl::Status Take(const PeerLink&, const RowMessage&) override { return {}; }
  absl::Status Close(bool done) override {
    script_.closes.push_back(done);
    return script_.closed;
  }
  bool is_whole() const override { return script_.whole; }
  absl::Status DropShared() override {
    ++script_.num_drops;
    return script_.dropped;
  }

 private:
  Script& script_;
  const std::span<std::byte> staging_;
};

// Rank 0 of three, with rank 1 on its host. It exchanges a row with each of the others.
class HybridPartsTest : public ::testing::Test {
 protected:
  HybridPartsTest() {
    for (const int32_t rank : {2, 1}) {
      moves_.sends.push_back({.to = RankId{rank}, .row = 5, .round = 2 - rank, .bytes = row_});
      moves_.receives.push_back(
          {.from = RankId{rank}, .row = 6, .round = 2 - rank, .num_bytes = 8});
    }
    path_ = MakeHybridPath({.peer = std::make_unique<ScriptedPath>(peer_, staging_),
                            .nccl = std::make_unique<ScriptedPath>(nccl_, staging_),
                            .same_host = {RankId{0}, RankId{1}}});
    ledger_.emplace(moves_);
  }

  std::vector<std::byte> row_ = std::vector<std::byte>(8);
  std::vector<std::byte> staging_ = std::vector<std::byte>(64);
  RowMoves moves_{.post_id = 4, .time_rounds = true};
  LinkSet links_{{}};
  std::optional<TransferLedger> ledger_;
  ScriptedPath::Script peer_, nccl_;
  std::unique_ptr<RowPath> path_;
};

TEST_F(HybridPartsTest, BothAreAlwaysClosedAndDroppedAndTheFirstErrorIsTold) {
  ASSERT_TRUE(path_->Open(moves_, *ledger_, links_).ok());
  EXPECT_TRUE(path_->Close(/*done=*/true).ok());
  peer_.closed = peer_.dropped = absl::InternalError("the copy engine hangs");
  EXPECT_EQ(path_->Close(/*done=*/false), peer_.closed);
  EXPECT_EQ(path_->DropShared(), peer_.dropped);
  nccl_.closed = nccl_.dropped = absl::InternalError("ncclCommAbort hangs");
  EXPECT_EQ(path_->Close(/*done=*/false), peer_.closed);
  EXPECT_EQ(path_->DropShared(), peer_.dropped);
  peer_.closed = peer_.dropped = absl::OkStatus();
  EXPECT_EQ(path_->Close(/*done=*/false), nccl_.closed);
  EXPECT_EQ(path_->DropShared(), nccl_.dropped);
  for (const ScriptedPath::Script* script : {&peer_, &nccl_}) {
    EXPECT_THAT(script->closes, ElementsAre(true, false, false, false));
    EXPECT_EQ(script->num_drops, 3);
  }
}

TEST_F(HybridPartsTest, ItIsBusyWaitsAndIsWholeAsBothAre) {
  EXPECT_EQ(path_->name(), "peer+nccl");
  EXPECT_EQ(path_->staging().data(), staging_.data());
  EXPECT_FALSE(path_->busy());
  EXPECT_EQ(path_->Waiting(), "");
  EXPECT_TRUE(path_->is_whole());
  for (ScriptedPath::Script* script : {&peer_, &nccl_}) {
    script->busy = true;
    EXPECT_TRUE(path_->busy());
    script->busy = false;
    script->whole = false;
    EXPECT_FALSE(path_->is_whole());
    script->whole = true;
  }
  nccl_.waits_for = "rank 0 has sent no id";
  EXPECT_EQ(path_->Waiting(), "rank 0 has sent no id");
  peer_.waits_for = "the device";
  EXPECT_EQ(path_->Waiting(), "the device; rank 0 has sent no id");
}

}  // namespace
}  // namespace eplb
