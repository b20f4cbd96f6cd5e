// All boundaries of a run as a trace, as its ranks logged them. It shows only what is known to have
// happened; "not_known" in its metadata lists what is missing.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cli/report_forms.h"
#include "client/cli/trace.h"

namespace eplb::cli {
namespace {

using Args = nlohmann::ordered_json;

constexpr int64_t kPreparedTrack = 0;
constexpr int64_t kBoundaryTrack = 1;
constexpr int64_t kFirstRoundTrack = 2;
// A rank's rounds overlap with their neighbours; in more lines than these nothing can be read.
constexpr int64_t kMaxRoundTracks = 14;

Args ArgsOf(const BoundaryRound& round) {
  Args args = {{"round", round.round},
               {"sent_bytes", round.sent_bytes},
               {"received_bytes", round.received_bytes}};
  if (round.checksum_micros >= 0) args["checksum_micros"] = round.checksum_micros;
  return args;
}

// Each round on the first track that is free by then.
int64_t DrawRounds(const BoundaryTimes& times, int64_t process, TraceFile& trace) {
  std::vector<const BoundaryRound*> rounds;
  for (const BoundaryRound& round : times.rounds) rounds.push_back(&round);
  std::ranges::stable_sort(
      rounds, [](const auto* a, const auto* b) { return a->unix_micros < b->unix_micros; });
  std::vector<int64_t> busy_until;
  int64_t left_out = 0;
  for (const BoundaryRound* round : rounds) {
    const auto free = std::ranges::find_if(
        busy_until, [round](int64_t until) { return until <= round->unix_micros; });
    const int64_t lane = free - busy_until.begin();
    if (lane == kMaxRoundTracks) {
      ++left_out;
      continue;
    }
    if (free == busy_until.end()) busy_until.push_back(0);
    busy_until[static_cast<size_t>(lane)] = round->unix_micros + round->micros;
    trace.Add({.track = {.process = process, .index = kFirstRoundTrack + lane},
               .name = absl::StrCat("round ", round->round),
               .unix_micros = round->unix_micros,
               .micros = round->micros,
               .args = ArgsOf(*round)});
  }
  return left_out;
}

void DrawBoundary(const TimedBoundary& boundary, int64_t process, TraceFile& trace) {
  const BoundaryTimes& times = boundary.times;
  const Track track{.process = process, .index = kBoundaryTrack};
  int64_t sent = 0;
  int64_t received = 0;
  for (const BoundaryRound& round : times.rounds) {
    sent += round.sent_bytes;
    received += round.received_bytes;
  }
  trace.Add({.track = track,
             .name = absl::StrCat("boundary, version ", times.version, " ", times.outcome),
             .unix_micros = times.whole.unix_micros,
             .micros = times.whole.micros,
             .args = {{"step", times.step},
                      {"version", times.version},
                      {"outcome", times.outcome},
                      {"transport", times.transport},
                      {"sent_bytes", sent},
                      {"received_bytes", received},
                      {"run_id", boundary.run_id}}});
  for (const BoundarySpan& span : times.spans) {
    trace.Add({.track = track,
               .name = span.name,
               .unix_micros = span.unix_micros,
               .micros = span.micros,
               .args = {{"step", times.step}, {"version", times.version}}});
  }
}

}  // namespace

std::string RunTrace(const std::string& directory, std::span<const RankTimeline> timelines) {
  TraceFile trace;
  Args not_known = Args::array();
  for (const RankTimeline& timeline : timelines) {
    const int64_t process = kFirstRankProcess + timeline.rank.value;
    trace.NameProcess(process, absl::StrCat("EPLB rank ", timeline.rank.value));
    trace.NameTrack({.process = process, .index = kPreparedTrack}, "PREPARED");
    trace.NameTrack({.process = process, .index = kBoundaryTrack}, "boundaries");
    trace.NameTrack({.process = process, .index = kFirstRoundTrack}, "rounds of rows");
    for (const TimedPrepared& prepared : timeline.prepared) {
      trace.Add({.track = {.process = process, .index = kPreparedTrack},
                 .name = absl::StrCat("PREPARED for version ", prepared.version),
                 .unix_micros = prepared.unix_micros,
                 .args = {{"version", prepared.version}, {"run_id", prepared.run_id}}});
    }
    for (const TimedBoundary& boundary : timeline.boundaries) {
      DrawBoundary(boundary, process, trace);
      const int64_t left_out = DrawRounds(boundary.times, process, trace);
      if (left_out == 0) continue;
      not_known.push_back(absl::StrCat("rank ", timeline.rank.value, ", version ",
                                       boundary.times.version, ": ", left_out,
                                       " rounds that overlap with ", kMaxRoundTracks, " others"));
    }
  }
  return trace.ToJson({{"source", "logs of ranks"},
                       {"directory", directory},
                       {"clock", "each rank's own, microseconds since 1970"},
                       {"not_known", std::move(not_known)}});
}

}  // namespace eplb::cli
