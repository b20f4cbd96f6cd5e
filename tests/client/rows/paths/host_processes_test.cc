// The host transport between real processes.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"

#include "client/rows/control/socket.h"
#include "client/rows/control/tcp_all_gather.h"
#include "tests/client/rows/control/world.h"
#include "tests/client/rows/paths/host_world.h"
#include "tests/client/rows/transport_contract.h"

namespace eplb {
namespace {

// Ranks as processes. The body runs in a child of fork() and returns whether all went well.
class ProcessesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto listener = ListenTcp("127.0.0.1", 0);
    ASSERT_TRUE(listener.ok());
    uint32_t port = 0;
    ASSERT_TRUE(
        absl::SimpleAtoi(listener->address.substr(listener->address.rfind(':') + 1), &port));
    port_ = static_cast<uint16_t>(port);
  }

  void RunProcesses(int32_t world_size,
                    const std::function<bool(int32_t, const AllGather&)>& body) {
    std::vector<pid_t> children;
    for (int32_t rank = 0; rank < world_size; ++rank) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        auto all_gather = MakeTcpAllGather({.rank = RankId{rank},
                                            .world_size = world_size,
                                            .port = port_,
                                            .timeout = absl::Seconds(30)});
        _exit(all_gather.ok() && body(rank, *all_gather) ? 0 : 1);
      }
      children.push_back(child);
    }
    for (size_t rank = 0; rank < children.size(); ++rank) {
      int result = -1;
      ASSERT_EQ(waitpid(children[rank], &result, 0), children[rank]);
      EXPECT_EQ(result, 0) << "rank " << rank;
    }
  }

  uint16_t port_ = 0;
};

constexpr int64_t kRingBytes = 1'000'000;

// A row from each rank to the next one.
RowMoves Ring(int32_t rank, int32_t world_size, std::span<const std::byte> row) {
  return {.post_id = 1,
          .sends = {{.to = RankId{(rank + 1) % world_size},
                     .row = 0,
                     .round = 0,
                     .bytes = row,
                     .staging_offset = 0}},
          .receives = {{.from = RankId{(rank + world_size - 1) % world_size},
                        .row = 0,
                        .round = 0,
                        .staging_offset = 0,
                        .num_bytes = kRingBytes}},
          .deadline = absl::Now() + absl::Seconds(30)};
}

TEST_F(ProcessesTest, RowsGoRoundARingOfProcessesThroughSharedMemory) {
  RunProcesses(3, [](int32_t rank, const AllGather& all_gather) {
    TransportOptions options = HostOptions(rank, 3, kRingBytes);
    bool noted = false;
    options.on_note = [&](std::string_view) { noted = true; };
    auto transport = MakeHostTransport(options, all_gather);
    if (!transport.ok() || noted) return false;
    const std::vector<std::byte> row(kRingBytes, static_cast<std::byte>(rank + 1));
    const auto ticket = (*transport)->Post(Ring(rank, 3, row));
    const absl::StatusOr<Progress> result = Finish(**transport, *ticket);
    const auto expected = static_cast<std::byte>((rank + 2) % 3 + 1);
    return result.ok() &&
           std::ranges::all_of((*transport)->staging(), [&](auto b) { return b == expected; });
  });
}

TEST_F(ProcessesTest, KilledProcessIsNamedByTheOthers) {
  RunProcesses(3, [](int32_t rank, const AllGather& all_gather) {
    auto transport = MakeHostTransport(HostOptions(rank, 3, kRingBytes), all_gather);
    if (!transport.ok()) return false;
    if (rank == 2) return true;  // leaves without a word, as _exit runs no destructor
    const std::vector<std::byte> row(kRingBytes, std::byte{1});
    const auto ticket = (*transport)->Post(Ring(rank, 3, row));
    if (absl::IsFailedPrecondition(ticket.status())) return true;  // it was gone before the post
    const absl::StatusOr<Progress> result = Finish(**transport, *ticket);
    return absl::IsUnavailable(result.status()) || absl::IsAborted(result.status());
  });
}

TEST_F(ProcessesTest, ForkedCopyIsRefusedAndDoesNotDisturb) {
  Transports transports = MakeSharedMemoryWorld(2, 64);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(transports[0]->Post(Nothing(1)).status());
    transports.clear();
    _exit(refused ? 0 : 1);
  }
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  const std::vector<std::byte> row(64, std::byte{3});
  const Ticket receive = MustPost(*transports[0], ReceiveOne(RankId{1}, 1, 64));
  const Ticket send = MustPost(*transports[1], SendOne(RankId{0}, 1, row));
  for (const auto& progress : Drive(transports, {receive, send})) EXPECT_TRUE(progress.ok());
}

}  // namespace
}  // namespace eplb
