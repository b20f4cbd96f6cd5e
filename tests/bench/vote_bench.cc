// Times the ranks' vote against the least that processes can do: a byte string from every rank to
// rank 0 and back, over Unix sockets with blocking calls. The ranks are processes on this machine,
// so figures of more ranks than cores include waiting for a core. Prints one line of JSON.
//   vote_bench [RANKS] [STEP_MS]
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "client/rows/control/control_channel.h"
#include "tests/bench/measure.h"

namespace eplb::bench {
namespace {

constexpr int kVotes = 400;  // votes in a row of one repetition
constexpr int kSteps = 10;   // steps of one repetition
constexpr int kRepetitions = 15;
constexpr size_t kBytes = 256;  // longest address of a rank, in the all-gather

using Bytes = std::array<char, kBytes>;

void Require(bool met, const char* what) {
  if (met) return;
  std::perror(what);
  std::_Exit(1);
}

// One rank's sockets: rank 0 has one to each other rank, another rank one to rank 0.
struct Star {
  int rank = 0;
  std::vector<int> peers;

  void Send(int fd, std::span<const char> bytes) const {
    Require(write(fd, bytes.data(), bytes.size()) == std::ssize(bytes), "write");
  }
  void Receive(int fd, std::span<char> bytes) const {
    Require(recv(fd, bytes.data(), bytes.size(), MSG_WAITALL) == std::ssize(bytes), "recv");
  }

  // The bytes of all ranks, to all ranks.
  std::vector<Bytes> Gather(const Bytes& mine, int world_size) const {
    std::vector<Bytes> all(static_cast<size_t>(world_size));
    const std::span flat(all.front().data(), all.size() * kBytes);
    all.front() = mine;
    if (rank == 0) {
      for (size_t i = 0; i < peers.size(); ++i) Receive(peers[i], all[i + 1]);
      for (const int peer : peers) Send(peer, flat);
    } else {
      Send(peers.front(), mine);
      Receive(peers.front(), flat);
    }
    return all;
  }

  void Barrier() const {
    std::array<char, 80> message{};  // a vote's bytes
    if (rank != 0) Send(peers.front(), message);
    for (const int peer : peers) Receive(peer, message);
    if (rank != 0) return;
    for (const int peer : peers) Send(peer, message);
  }
};

std::unique_ptr<ControlChannel> Connect(const Star& star, int world_size) {
  const AllGather gather = [&](std::string_view blob) {
    Bytes mine{};
    std::ranges::copy(blob, mine.begin());
    std::vector<std::string> texts;
    for (const Bytes& one : star.Gather(mine, world_size)) texts.emplace_back(one.data());
    return absl::StatusOr<std::vector<std::string>>(std::move(texts));
  };
  auto channel = MakeTcpControlChannel(
      {.rank = RankId{star.rank}, .world_size = world_size, .secret = "bench"}, gather);
  Require(channel.ok(), "control channel");
  return *std::move(channel);
}

void Run(const Star& star, int world_size, std::chrono::milliseconds step) {
  const std::unique_ptr<ControlChannel> channel = Connect(star, world_size);
  const std::vector<int64_t> values = {7, -7, 11, -11, 13, -13};
  const auto vote = [&] { Require(channel->AllReduceMin(values, absl::Seconds(10)).ok(), "vote"); };
  const auto bare = [&] { star.Barrier(); };
  const auto timed = [&](int times, const auto& function) {
    star.Barrier();
    return Milliseconds([&] {
             for (int i = 0; i < times; ++i) function();
           }) /
           times;
  };
  const auto train = [&] {  // the barrier stands for the collectives of a step
    std::this_thread::sleep_for(step);
    star.Barrier();
  };
  std::vector<double> votes, bares, with, without;
  for (int i = 0; i < kRepetitions; ++i) {
    votes.push_back(timed(kVotes, vote));
    bares.push_back(timed(kVotes, bare));
    without.push_back(timed(kSteps, train));
    with.push_back(timed(kSteps, [&] {
      train();
      vote();
    }));
  }
  if (star.rank != 0) return;
  const double vote_ms = Median(votes);
  const double bare_ms = Median(bares);
  const double cost_ms = Median(with) - Median(without);
  std::printf("%s\n", absl::StrFormat(R"({"ranks": %d, "cores": %d, "vote_us": %.0f, )"
                                      R"("bare_us": %.0f, "ratio": %.2f, "step_ms": %d, )"
                                      R"("vote_in_a_step_us": %.0f, "share_of_step": %.4f})",
                                      world_size, std::thread::hardware_concurrency(),
                                      vote_ms * 1e3, bare_ms * 1e3, vote_ms / bare_ms, step.count(),
                                      cost_ms * 1e3, cost_ms / Median(without))
                          .c_str());
}

}  // namespace
}  // namespace eplb::bench

int main(int argc, char** argv) {
  using namespace eplb::bench;  // NOLINT(google-build-using-namespace)
  const int world_size = argc > 1 ? std::atoi(argv[1]) : 8;
  const std::chrono::milliseconds step(argc > 2 ? std::atoi(argv[2]) : 60);
  if (world_size < 2 || step.count() < 1) {
    (void)std::fprintf(stderr, "usage: vote_bench [RANKS] [STEP_MS], at least 2 ranks\n");
    return 2;
  }
  (void)prctl(PR_SET_TIMERSLACK, 1);
  Star root;
  for (int rank = 1; rank < world_size; ++rank) {
    std::array<int, 2> pair{};
    Require(socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()) == 0, "socketpair");
    const pid_t child = fork();
    Require(child >= 0, "fork");
    if (child == 0) {
      for (const int fd : root.peers) (void)close(fd);
      (void)close(pair[0]);
      Run({.rank = rank, .peers = {pair[1]}}, world_size, step);
      std::_Exit(0);
    }
    (void)close(pair[1]);
    root.peers.push_back(pair[0]);
  }
  Run(root, world_size, step);
  while (wait(nullptr) > 0) continue;
  return 0;
}
