// The times of one decision: a table, and a trace.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/text.h"
#include "client/cli/text.h"
#include "client/cli/trace.h"
#include "proto/wire/message_json.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {

namespace {

using Args = nlohmann::ordered_json;

// Tracks of the daemon's process; the ranks' tracks follow.
constexpr int64_t kWindowTrack = 0;
constexpr int64_t kSolveTrack = 1;
constexpr int64_t kChunkTrack = 2;
constexpr int64_t kFirstRankTrack = 3;

constexpr char kOverlooked[] = "the daemon did not see it, or does not keep it";

// Time at which the solver ended, microseconds since 1970; 0: not known.
int64_t SolveEndMicros(const v1::Plan& plan) {
  constexpr double kMost = 1e15;  // above any solve time
  const int64_t began = plan.times().solve_began_unix_micros();
  if (began == 0) return 0;
  return began +
         static_cast<int64_t>(std::clamp(FiniteOrZero(plan.solve_seconds()) * 1e6, 0.0, kMost));
}

// The rank whose PREPARED was the last of all; null if that rank has no time or is not known.
const v1::ChunkRankTimes* SlowestOf(const v1::ChunkTimes& chunk) {
  if (chunk.ranks().empty() || chunk.prepared_unix_micros() == 0) return nullptr;
  // A rank that returned PREPARED has no time, and may have been the last one.
  const v1::ChunkRankTimes& last = *chunk.ranks().rbegin();
  return last.prepared_unix_micros() == chunk.prepared_unix_micros() ? &last : nullptr;
}

// The spans of one decision, and what cannot be drawn.
class PlanDrawing {
 public:
  PlanDrawing(const std::string& job, const v1::Plan& plan) : plan_(plan) {
    trace_.NameProcess(kDaemonProcess, absl::StrCat("eplbd, job ", job));
    trace_.NameTrack(At(kWindowTrack), "window");
    trace_.NameTrack(At(kSolveTrack), "solve and decide");
    trace_.NameTrack(At(kChunkTrack), "chunks");
  }

  void DrawDecision() {
    const v1::PlanTimes& times = plan_.times();
    const Args steps = {{"first_step", plan_.decided_first_step()},
                        {"last_step", plan_.decided_last_step()}};
    Draw(kWindowTrack,
         absl::StrCat("window: reports of steps ", plan_.decided_first_step(), "..",
                      plan_.decided_last_step()),
         times.window_began_unix_micros(), times.window_complete_unix_micros(), steps);
    Draw(kSolveTrack, "solve", times.solve_began_unix_micros(), SolveEndMicros(plan_),
         {{"policy", plan_.policy()}});
    trace_.Add({.track = At(kSolveTrack),
                .name = absl::StrCat("decision ", plan_.plan()),
                .unix_micros = plan_.unix_micros(),
                .args = {{"result", wire::EnumText(plan_.result())},
                         {"reason", plan_.reason()},
                         {"asked_by", plan_.asked_by()},
                         {"transfers", plan_.transfers()},
                         {"chunks_committed", plan_.chunks_committed()},
                         {"num_chunks", plan_.num_chunks()}}});
  }

  void DrawChunks() {
    const auto& chunks = plan_.times().chunks();
    if (chunks.size() < static_cast<int>(plan_.chunks_committed())) {
      Missing("chunks", absl::StrCat(kOverlooked, ": ", chunks.size(), " of ",
                                     plan_.chunks_committed(), " committed ones are there"));
    }
    for (int i = 0; i < chunks.size(); ++i) DrawChunk(i + 1, chunks[i]);
  }

  std::string Finish(const std::string& job) {
    for (const auto& [rank, track] : rank_tracks_) {
      trace_.NameTrack(At(track), absl::StrCat("rank ", rank));
    }
    return trace_.ToJson({{"source", "eplbd"},
                          {"job", job},
                          {"plan", plan_.plan()},
                          {"clock", "the daemon's, microseconds since 1970"},
                          {"not_known", not_known_}});
  }

 private:
  static Track At(int64_t index) { return {.process = kDaemonProcess, .index = index}; }

  void Missing(const std::string& what, const std::string& why) {
    not_known_.push_back(absl::StrCat(what, ": ", why));
  }

  // Draws a span if both ends are known and the clock did not go back between them.
  void Draw(int64_t track, const std::string& name, int64_t began, int64_t ended, Args args) {
    if (began == 0 || ended == 0) return Missing(name, kOverlooked);
    if (ended < began) return Missing(name, "the daemon's clock was set back meanwhile");
    trace_.Add({.track = At(track),
                .name = name,
                .unix_micros = began,
                .micros = ended - began,
                .args = std::move(args)});
  }

  int64_t TrackOf(uint32_t rank) {
    const auto next = kFirstRankTrack + std::ssize(rank_tracks_);
    return rank_tracks_.try_emplace(rank, next).first->second;
  }

  void DrawChunk(int number, const v1::ChunkTimes& chunk) {
    const std::string name =
        absl::StrCat("chunk ", number, " of ", plan_.num_chunks(), ", version ", chunk.version());
    const int64_t proposed = chunk.proposed_unix_micros();
    const int64_t prepared = chunk.prepared_unix_micros();
    const int64_t ended = chunk.ended_unix_micros();
    if (ended == 0) {
      Missing(name, "it had not ended, or the daemon did not see its end");
      trace_.Add({.track = At(kChunkTrack), .name = name, .unix_micros = proposed});
    } else {
      Draw(kChunkTrack, name, proposed, ended,
           {{"version", chunk.version()},
            {"layers", chunk.num_layers()},
            {"result", chunk.committed() ? "committed" : "withdrawn"}});
    }
    Args args = {{"version", chunk.version()}, {"timed_ranks", chunk.timed_ranks()}};
    if (const v1::ChunkRankTimes* const slowest = SlowestOf(chunk)) {
      args["slowest_rank"] = slowest->rank();
      args["slowest_seconds"] =
          static_cast<double>(slowest->prepared_unix_micros() - proposed) / 1e6;
    }
    Draw(kChunkTrack, "prepare", proposed, prepared, std::move(args));
    Args switched = {{"version", chunk.version()}};
    if (chunk.has_longest_pause_rank()) {
      switched["longest_boundary_rank"] = chunk.longest_pause_rank();
      switched["longest_boundary_seconds"] = chunk.longest_pause_seconds();
    }
    if (prepared != 0 && ended != 0) {
      Draw(kChunkTrack, chunk.committed() ? "vote and switch" : "until withdrawn", prepared, ended,
           std::move(switched));
    }
    DrawRanks(name, chunk);
  }

  void DrawRanks(const std::string& name, const v1::ChunkTimes& chunk) {
    if (static_cast<int>(chunk.timed_ranks()) > chunk.ranks_size()) {
      Missing(name, absl::StrCat("of ", chunk.timed_ranks(), " ranks the slowest ",
                                 chunk.ranks_size(), " are kept"));
    }
    for (const v1::ChunkRankTimes& rank : chunk.ranks()) {
      const int64_t track = TrackOf(rank.rank());
      const bool slowest = &rank == SlowestOf(chunk);
      Draw(track, slowest ? "prepare (the slowest)" : "prepare", chunk.proposed_unix_micros(),
           rank.prepared_unix_micros(), {{"version", chunk.version()}});
      if (rank.applied_unix_micros() == 0) continue;
      Args args = {{"version", chunk.version()}};
      if (rank.has_pause_seconds()) args["boundary_seconds"] = rank.pause_seconds();
      Draw(track, "vote and switch", rank.prepared_unix_micros(), rank.applied_unix_micros(),
           std::move(args));
    }
  }

  const v1::Plan& plan_;
  TraceFile trace_;
  std::map<uint32_t, int64_t> rank_tracks_;
  std::vector<std::string> not_known_;
};

// "11:06:40.123".
std::string ClockText(int64_t unix_micros) {
  return absl::FormatTime("%H:%M:%E3S", absl::FromUnixMicros(unix_micros), absl::UTCTimeZone());
}

// A row of what lay between two times, of which 0 is not known.
std::vector<std::string> TimeRow(const std::string& what, int64_t began, int64_t ended,
                                 const std::string& note) {
  const bool known = began != 0 && ended >= began;
  return {what, began == 0 ? "-" : ClockText(began),
          known ? Seconds(static_cast<double>(ended - began) / 1e6) : "-", note};
}

void AddChunkRows(const v1::Plan& plan, int index, Table& table) {
  const v1::ChunkTimes& chunk = plan.times().chunks(index);
  const std::string name = absl::StrCat("chunk ", index + 1, "/", plan.num_chunks());
  const std::string end = chunk.ended_unix_micros() == 0 ? "its end is not known"
                          : chunk.committed()            ? "committed"
                                                         : "withdrawn";
  table.rows.push_back(TimeRow(name, chunk.proposed_unix_micros(), chunk.ended_unix_micros(),
                               absl::StrCat("version ", chunk.version(), ", ",
                                            Counted(chunk.num_layers(), "layer"), ", ", end)));
  const v1::ChunkRankTimes* const last = SlowestOf(chunk);
  const std::string slowest =
      last == nullptr ? "" : absl::StrCat("the slowest: rank ", last->rank());
  table.rows.push_back(
      TimeRow("  prepare", chunk.proposed_unix_micros(), chunk.prepared_unix_micros(), slowest));
  if (!chunk.committed()) return;
  const std::string longest =
      chunk.has_longest_pause_rank()
          ? absl::StrCat("the longest pause: rank ", chunk.longest_pause_rank(), ", ",
                         Seconds(chunk.longest_pause_seconds()))
          : "";
  table.rows.push_back(TimeRow("  vote and switch", chunk.prepared_unix_micros(),
                               chunk.ended_unix_micros(), longest));
}

}  // namespace

std::string PlanTrace(const std::string& job, const v1::Plan& plan) {
  PlanDrawing drawing(job, plan);
  drawing.DrawDecision();
  drawing.DrawChunks();
  return drawing.Finish(job);
}

std::string TimesTable(const v1::Plan& plan, const Terminal& terminal) {
  const v1::PlanTimes& times = plan.times();
  Table table({"what", "began (UTC)", ">took", ""});
  table.rows.push_back(TimeRow("window", times.window_began_unix_micros(),
                               times.window_complete_unix_micros(),
                               absl::StrCat("reports of steps ", plan.decided_first_step(), "..",
                                            plan.decided_last_step())));
  table.rows.push_back(TimeRow("solve", times.solve_began_unix_micros(), SolveEndMicros(plan),
                               Printable(plan.policy())));
  for (int i = 0; i < times.chunks_size(); ++i) AddChunkRows(plan, i, table);
  return FormatTable(table, terminal);
}

}  // namespace eplb::cli
