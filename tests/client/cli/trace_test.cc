#include "client/cli/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/cli/report_forms.h"

#include "eplb/v1/query.pb.h"
#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using TraceJson = nlohmann::json;

// A quote, a backslash, control characters, what ends a script in HTML, and half a character.
constexpr char kHostileName[] = "a\"b\\c\n\x01</script>\xff";
constexpr char kHostileRead[] = "a\"b\\c\n\x01</script>\xEF\xBF\xBD";

// Checks the properties of every trace that a viewer relies on.
TraceJson GoodTrace(const std::string& text) {
  TraceJson trace = TraceJson::parse(text);
  EXPECT_EQ(trace.at("displayTimeUnit"), "ms");
  std::map<int64_t, int> names;
  // Ends of the spans open on a track.
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> ends;
  int64_t last = 0;
  for (const TraceJson& event : trace.at("traceEvents")) {
    const std::string phase = event.at("ph");
    EXPECT_THAT((std::vector<std::string>{"M", "X", "i"}), Contains(phase));
    if (event.at("name") == "process_name") ++names[event.at("pid")];
    if (phase == "M") continue;
    const int64_t ts = event.at("ts");
    EXPECT_GE(ts, last) << event;
    last = ts;
    EXPECT_EQ(names[event.at("pid")], 1) << event;
    if (phase != "X") continue;
    const int64_t end = ts + event.at("dur").get<int64_t>();
    EXPECT_GE(end, ts);
    std::vector<int64_t>& open = ends[{event.at("pid"), event.at("tid")}];
    while (!open.empty() && open.back() <= ts) open.pop_back();
    if (!open.empty()) {
      EXPECT_LE(end, open.back()) << event;
    }
    open.push_back(end);
  }
  return trace;
}

// {name, ts, dur} of the spans on one track.
using Span = std::tuple<std::string, int64_t, int64_t>;
std::vector<Span> SpansOf(const TraceJson& trace, const std::string& track) {
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const TraceJson& event : trace.at("traceEvents")) {
    if (event.at("name") != "thread_name" || event.at("args").at("name") != track) continue;
    places.emplace_back(event.at("pid"), event.at("tid"));
  }
  std::vector<Span> spans;
  for (const TraceJson& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const std::pair<int64_t, int64_t> place = {event.at("pid"), event.at("tid")};
    if (std::find(places.begin(), places.end(), place) == places.end()) continue;
    spans.emplace_back(event.at("name"), event.at("ts"), event.at("dur"));
  }
  return spans;
}

const TraceJson* EventOf(const TraceJson& trace, const std::string& name) {
  for (const TraceJson& event : trace.at("traceEvents")) {
    if (event.at("name") == name) return &event;
  }
  return nullptr;
}

// Two chunks, of which the second is in flight.
v1::Plan ExamplePlan() {
  v1::Plan plan;
  plan.set_plan(8);
  plan.set_unix_micros(5000);
  plan.set_policy("incremental");
  plan.set_result(v1::PLAN_RESULT_PROPOSED);
  plan.set_num_chunks(2);
  plan.set_chunks_committed(1);
  plan.set_decided_first_step(100);
  plan.set_decided_last_step(149);
  plan.set_solve_seconds(0.0015);
  v1::PlanTimes& times = *plan.mutable_times();
  times.set_window_began_unix_micros(1000);
  times.set_window_complete_unix_micros(3000);
  times.set_solve_began_unix_micros(3200);
  v1::ChunkTimes& first = *times.add_chunks();
  first.set_version(4);
  first.set_num_layers(3);
  first.set_proposed_unix_micros(5000);
  first.set_prepared_unix_micros(6000);
  first.set_ended_unix_micros(9000);
  first.set_committed(true);
  first.set_timed_ranks(2);
  first.set_longest_pause_rank(1);
  first.set_longest_pause_seconds(0.0025);
  for (const uint32_t rank : {1U, 0U}) {  // rank 0 is the slowest
    v1::ChunkRankTimes& one = *first.add_ranks();
    one.set_rank(rank);
    one.set_prepared_unix_micros(rank == 0 ? 6000 : 5500);
    one.set_applied_unix_micros(rank == 0 ? 8000 : 9000);
    one.set_pause_seconds(0.002);
  }
  v1::ChunkTimes& second = *times.add_chunks();
  second.set_version(5);
  second.set_proposed_unix_micros(9000);
  return plan;
}

TEST(PlanTraceTest, EverySpanIsWhatTheDaemonSaw) {
  const TraceJson trace = GoodTrace(PlanTrace("demo", ExamplePlan()));
  EXPECT_THAT(SpansOf(trace, "window"),
              ElementsAre(Span{"window: reports of steps 100..149", 1000, 2000}));
  EXPECT_THAT(SpansOf(trace, "solve and decide"), ElementsAre(Span{"solve", 3200, 1500}));
  EXPECT_THAT(SpansOf(trace, "chunks"),
              ElementsAre(Span{"chunk 1 of 2, version 4", 5000, 4000}, Span{"prepare", 5000, 1000},
                          Span{"vote and switch", 6000, 3000}));
  EXPECT_THAT(SpansOf(trace, "rank 0"), ElementsAre(Span{"prepare (the slowest)", 5000, 1000},
                                                    Span{"vote and switch", 6000, 2000}));
  EXPECT_THAT(SpansOf(trace, "rank 1"),
              ElementsAre(Span{"prepare", 5000, 500}, Span{"vote and switch", 5500, 3500}));
  const TraceJson& prepare = EventOf(trace, "prepare")->at("args");
  EXPECT_EQ(EventOf(trace, "decision 8")->at("ts"), 5000);
  EXPECT_EQ(prepare.at("slowest_rank"), 0);
  EXPECT_EQ(prepare.at("slowest_seconds"), 0.001);
  const TraceJson& switched = EventOf(trace, "vote and switch")->at("args");
  EXPECT_EQ(
      switched.value("boundary_seconds", 0.0) + switched.value("longest_boundary_seconds", 0.0),
      0.002)
      << "the earliest is that of rank 1";
}

TEST(PlanTraceTest, WhatIsNotKnownIsLeftOutAndNamed) {
  const TraceJson trace = GoodTrace(PlanTrace("demo", ExamplePlan()));
  EXPECT_THAT(trace.at("metadata").at("not_known").dump(),
              HasSubstr("chunk 2 of 2, version 5: it had not ended"));
  v1::Plan plan = ExamplePlan();
  plan.mutable_times()->Clear();
  const TraceJson empty = GoodTrace(PlanTrace("demo", plan));
  for (const TraceJson& event : empty.at("traceEvents")) EXPECT_NE(event.at("ph"), "X") << event;
  const std::string named = empty.at("metadata").at("not_known").dump();
  for (const char* what : {"window: reports", "solve: ", "chunks: "}) {
    EXPECT_THAT(named, HasSubstr(what));
  }
  // A clock that was set back between two of its readings.
  plan = ExamplePlan();
  plan.mutable_times()->mutable_chunks(0)->set_prepared_unix_micros(4000);
  EXPECT_THAT(GoodTrace(PlanTrace("demo", plan)).at("metadata").at("not_known").dump(),
              HasSubstr("set back"));
  // Ranks that are not kept.
  plan = ExamplePlan();
  plan.mutable_times()->mutable_chunks(0)->set_timed_ranks(512);
  EXPECT_THAT(PlanTrace("demo", plan), HasSubstr("of 512 ranks the slowest 2 are kept"));
}

TEST(PlanTraceTest, ARankIsTheSlowestOnlyWhereItsPreparedWasTheLast) {
  v1::Plan plan = ExamplePlan();
  plan.mutable_times()->mutable_chunks(0)->set_prepared_unix_micros(6500);  // by one without a time
  const TraceJson trace = GoodTrace(PlanTrace("demo", plan));
  EXPECT_EQ(EventOf(trace, "prepare (the slowest)"), nullptr);
  EXPECT_FALSE(EventOf(trace, "prepare")->at("args").contains("slowest_rank"));
}

TEST(PlanTraceTest, AWithdrawnChunkSaysSo) {
  v1::Plan plan = ExamplePlan();
  plan.mutable_times()->mutable_chunks(0)->set_committed(false);
  const TraceJson trace = GoodTrace(PlanTrace("demo", plan));
  EXPECT_EQ(EventOf(trace, "chunk 1 of 2, version 4")->at("args").at("result"), "withdrawn");
  EXPECT_NE(EventOf(trace, "until withdrawn"), nullptr);
}

TEST(PlanTraceTest, NamesOfOthersAreEscaped) {
  v1::Plan plan = ExamplePlan();
  plan.set_policy(std::string("x\"y\x02"));
  plan.set_reason("why \"\n");
  const TraceJson trace = GoodTrace(PlanTrace(kHostileName, plan));
  EXPECT_EQ(EventOf(trace, "process_name")->at("args").at("name"),
            std::string("eplbd, job ") + kHostileRead);
  EXPECT_EQ(trace.at("metadata").at("job"), kHostileRead);
  EXPECT_EQ(EventOf(trace, "solve")->at("args").at("policy"), "x\"y\x02");
  EXPECT_EQ(EventOf(trace, "decision 8")->at("args").at("reason"), "why \"\n");
}

RankTimeline TimelineOf(int32_t rank, std::vector<BoundaryRound> rounds) {
  RankTimeline timeline{.rank = RankId{rank},
                        .prepared = {{.run_id = "a", .version = 3, .unix_micros = 50}}};
  timeline.boundaries.push_back(
      {.run_id = kHostileName,
       .times = {.step = 7,
                 .version = 3,
                 .outcome = "committed",
                 .transport = "host",
                 .whole = {.name = "boundary", .unix_micros = 100, .micros = 100},
                 .spans = {{.name = "vote", .unix_micros = 101, .micros = 9},
                           {.name = "transfer", .unix_micros = 110, .micros = 60},
                           {.name = "local rows", .unix_micros = 111, .micros = 4},
                           {.name = "second vote", .unix_micros = 170, .micros = 10},
                           {.name = "commit", .unix_micros = 180, .micros = 15}},
                 .rounds = std::move(rounds)}});
  return timeline;
}

TEST(RunTraceTest, ARankIsAProcessAndItsBoundaryHoldsItsParts) {
  const TraceJson trace = GoodTrace(RunTrace(
      kHostileName,
      std::vector<RankTimeline>{TimelineOf(0, {{.round = 0,
                                                .unix_micros = 112,
                                                .micros = 20,
                                                .sent_bytes = 5,
                                                .received_bytes = 7,
                                                .checksum_micros = 3},
                                               {.round = 1, .unix_micros = 132, .micros = 30}}),
                                TimelineOf(1, {})}));
  EXPECT_EQ(trace.at("metadata").at("directory"), kHostileRead);
  EXPECT_THAT(trace.at("metadata").at("not_known"), IsEmpty());
  const std::vector<Span> boundaries = SpansOf(trace, "boundaries");
  EXPECT_EQ(boundaries.size(), 2U * 6);
  EXPECT_THAT(boundaries, Contains(Span{"boundary, version 3 committed", 100, 100}));
  EXPECT_THAT(boundaries, Contains(Span{"local rows", 111, 4}));
  EXPECT_THAT(SpansOf(trace, "rounds of rows"),
              ElementsAre(Span{"round 0", 112, 20}, Span{"round 1", 132, 30}));
  const TraceJson& boundary = *EventOf(trace, "boundary, version 3 committed");
  EXPECT_EQ(boundary.at("pid"), kFirstRankProcess);
  EXPECT_EQ(boundary.at("args").at("run_id"), kHostileRead);
  EXPECT_EQ(boundary.at("args").at("received_bytes"), 7);
  EXPECT_EQ(EventOf(trace, "round 0")->at("args").at("checksum_micros"), 3);
  EXPECT_FALSE(EventOf(trace, "round 1")->at("args").contains("checksum_micros"));
  EXPECT_EQ(EventOf(trace, "PREPARED for version 3")->at("ts"), 50);
}

TEST(RunTraceTest, RoundsThatOverlapLieOnTracksOfTheirOwn) {
  constexpr int32_t kRounds = 20;
  std::vector<BoundaryRound> rounds;
  rounds.reserve(kRounds);
  for (int32_t round = 0; round < kRounds; ++round) {
    rounds.push_back({.round = round, .unix_micros = 112 + round, .micros = 30});
  }
  const TraceJson trace =
      GoodTrace(RunTrace("d", std::vector<RankTimeline>{TimelineOf(0, std::move(rounds))}));
  std::map<int64_t, int> tracks;
  for (const TraceJson& event : trace.at("traceEvents")) {
    const std::string name = event.at("name");
    if (event.at("ph") == "X" && name.starts_with("round ")) ++tracks[event.at("tid")];
  }
  EXPECT_EQ(tracks.size(), 14U);
  EXPECT_THAT(trace.at("metadata").at("not_known").dump(),
              HasSubstr("rank 0, version 3: 6 rounds that overlap with 14 others"));
}

}  // namespace
}  // namespace eplb::cli
