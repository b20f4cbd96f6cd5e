#include "client/rows/paths/transport_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/client/rows/control/world.h"
#include "tests/client/rows/paths/host_world.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kRanks = 3;
constexpr int32_t kNobody = -1;

// A way that works, but for the preparation of one rank and the connection of another.
TransportCandidate Candidate(const TransportOptions& options, const std::string& name,
                             int32_t unprepared, int32_t unconnected) {
  return {.name = name,
          .prepare =
              [rank = options.rank.value, unprepared] {
                return rank == unprepared ? absl::ResourceExhaustedError("no memory")
                                          : absl::OkStatus();
              },
          .connect = [options, unconnected](const AllGather& all_gather)
              -> absl::StatusOr<std::unique_ptr<Transport>> {
            auto transport = MakeHostTransport(options, all_gather);
            if (options.rank.value == unconnected) return absl::InternalError("no NVLink");
            return transport;
          }};
}

struct Outcome {
  absl::Status status;
  std::vector<std::string> notes;
};

// Runs FirstUsable on all ranks; each has the candidates that `make` gives it.
std::vector<Outcome> RunAll(
    const std::function<std::vector<TransportCandidate>(const TransportOptions&)>& make) {
  ThreadAllGather all_gather(kRanks);
  std::vector<Outcome> outcomes(kRanks);
  RunRanks(kRanks, [&](int32_t rank) {
    TransportOptions options = HostOptions(rank, kRanks, 64);
    options.on_note = [&outcomes, rank](std::string_view note) {
      outcomes[rank].notes.emplace_back(note);
    };
    outcomes[rank].status = FirstUsable(make(options), options, all_gather.ForRank(rank)).status();
  });
  return outcomes;
}

TEST(TransportChoiceTest, TheFirstThatAllRanksCanUseIsTaken) {
  const auto outcomes = RunAll([](const TransportOptions& options) {
    return std::vector{Candidate(options, "a", kNobody, kNobody),
                       Candidate(options, "b", 0, kNobody)};
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_TRUE(outcome.notes.empty());
  }
}

TEST(TransportChoiceTest, WhatOneRankCannotUseIsDroppedOnAllWithItsReason) {
  const auto outcomes = RunAll([](const TransportOptions& options) {
    return std::vector{Candidate(options, "a", /*unprepared=*/2, kNobody),
                       Candidate(options, "b", kNobody, /*unconnected=*/1),
                       Candidate(options, "c", kNobody, kNobody)};
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_THAT(outcome.notes, ElementsAre("transport a cannot be used: rank 2: no memory",
                                           "transport b cannot be used: rank 1: no NVLink"));
  }
}

TEST(TransportChoiceTest, WithoutAnyEveryReasonIsGiven) {
  const auto outcomes = RunAll([](const TransportOptions& options) {
    return std::vector{Candidate(options, "a", 0, kNobody), Candidate(options, "b", kNobody, 2)};
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(
        outcome.status.message(),
        "transport a cannot be used: rank 0: no memory; transport b cannot be used: rank 2: no "
        "NVLink");
  }
}

TEST(TransportChoiceTest, ReasonsOfAllRanksAreGivenOnceEach) {
  const auto outcomes = RunAll([](const TransportOptions& options) {
    TransportCandidate candidate = Candidate(options, "a", kNobody, kNobody);
    candidate.prepare = [rank = options.rank.value] {
      // Rank 2 only says what it heard of rank 0.
      if (rank == 2) return absl::UnavailableError("rank 0: no memory");
      return absl::ResourceExhaustedError(rank == 0 ? "no memory" : "no driver");
    };
    return std::vector{candidate};
  });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.status.message(),
              "transport a cannot be used: rank 0: no memory; rank 1: no driver");
    EXPECT_TRUE(outcome.notes.empty()) << "the error says it";
  }
}

TEST(TransportChoiceTest, WhatWasPreparedGoesBeforeTheNextIsPrepared) {
  const auto outcomes = RunAll([](const TransportOptions& options) {
    auto arena = std::make_shared<int>(0);
    const std::weak_ptr<int> seen = arena;
    TransportCandidate large = Candidate(options, "a", /*unprepared=*/1, kNobody);
    large.connect = [arena, connect = large.connect](const AllGather& all_gather) {
      return connect(all_gather);
    };
    TransportCandidate next = Candidate(options, "b", kNobody, kNobody);
    next.prepare = [seen] {
      return seen.expired() ? absl::OkStatus() : absl::InternalError("the first is still there");
    };
    return std::vector{std::move(large), std::move(next)};
  });
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.status.ok()) << outcome.status;
}

// EP groups of `size` ranks each, in the order of ranks.
std::vector<RankPlace> PlacesOf(int32_t size, const std::vector<std::string>& hosts) {
  std::vector<RankPlace> places;
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto first = static_cast<int32_t>(rank) / size * size;
    places.push_back({.host = hosts[rank], .ep_group = RankId{first}});
  }
  return places;
}

TEST(AutoTransportsTest, OneHostHasPeerSeveralHaveBothAndRanksThatAreAloneHaveNccl) {
  const auto chosen = [](int32_t size, const std::vector<std::string>& hosts) {
    return AutoTransports(PlacesOf(size, hosts));
  };
  const auto peer = ElementsAre("peer", "nccl", "host");
  const auto both = ElementsAre("peer+nccl", "nccl", "host");
  const auto nccl = ElementsAre("nccl", "host");
  EXPECT_THAT(chosen(4, {"a", "a", "a", "a"}), peer);
  EXPECT_THAT(chosen(4, {"a", "a", "b", "b"}), both);
  EXPECT_THAT(chosen(4, {"a", "b", "b", "b"}), both);
  EXPECT_THAT(chosen(4, {"a", "b", "c", "c"}), both);
  EXPECT_THAT(chosen(4, {"a", "b", "c", "d"}), nccl);
  // Groups that share a host with others alone share nothing.
  EXPECT_THAT(chosen(2, {"a", "a", "b", "b"}), peer);
  EXPECT_THAT(chosen(2, {"a", "b", "a", "b"}), nccl);
  EXPECT_THAT(chosen(1, {"a", "b"}), peer) << "no rows go anywhere";
  // All groups take the same.
  EXPECT_THAT(chosen(3, {"a", "a", "a", "a", "b", "c"}), both);
  EXPECT_THAT(chosen(3, {"a", "a", "b", "c", "d", "e"}), both);
  // The host of a rank without a name is unknown.
  EXPECT_THAT(chosen(2, {"", ""}), nccl);
  EXPECT_THAT(chosen(3, {"a", "", "a"}), both);
}

TEST(AutoTransportsTest, RanksOfAHostAreThoseOfTheEpGroupThere) {
  const std::vector<RankPlace> places = PlacesOf(4, {"a", "b", "a", "", "a", "b", "", ""});
  const std::vector<RankId> first = {RankId{0}, RankId{1}, RankId{2}, RankId{3}};
  const std::vector<RankId> second = {RankId{4}, RankId{5}, RankId{6}, RankId{7}};
  EXPECT_THAT(RanksOfItsHost(RankId{2}, first, places), ElementsAre(RankId{0}, RankId{2}));
  EXPECT_THAT(RanksOfItsHost(RankId{1}, first, places), ElementsAre(RankId{1}));
  EXPECT_THAT(RanksOfItsHost(RankId{3}, first, places), ElementsAre(RankId{3}));
  EXPECT_THAT(RanksOfItsHost(RankId{4}, second, places), ElementsAre(RankId{4}));
  EXPECT_THAT(RanksOfItsHost(RankId{7}, second, places), ElementsAre(RankId{7}));
}

TEST(AutoTransportsTest, NcclIsUsedByTwo) {
  EXPECT_TRUE(UsesNccl("nccl"));
  EXPECT_TRUE(UsesNccl("peer+nccl"));
  EXPECT_FALSE(UsesNccl("peer"));
  EXPECT_FALSE(UsesNccl("host"));
}

TEST(RowMoverTest, HostMemoryGoesByTheHostTransportAlone) {
  ThreadAllGather all_gather(1);
  const RowMoverOptions options{
      .transport = HostOptions(0, 1, 64), .name = "auto", .memory = {}, .ep_group = {RankId{0}}};
  const auto mover = MakeRowMover(options, all_gather.ForRank(0));
  ASSERT_TRUE(mover.ok()) << mover.status();
  EXPECT_EQ(mover->transport->name(), "host");
  EXPECT_EQ(mover->queue->stream(), nullptr);
  for (const char* name : {"peer", "nccl", "peer+nccl"}) {
    RowMoverOptions other = options;
    other.name = name;
    const absl::Status status = MakeRowMover(other, all_gather.ForRank(0)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("needs expert tensors in GPU memory"));
  }
}

}  // namespace
}  // namespace eplb
