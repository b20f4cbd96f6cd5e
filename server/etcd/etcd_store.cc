#include "server/etcd/etcd_store.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "base/status_macros.h"
#include "placement/digest.h"
#include "proto/wire/messages.h"
#include "server/store/checked_rows.h"
#include "server/store/value_rows.h"

namespace eplb::etcd {
namespace {

constexpr int64_t kMaxTrimmed = 32;  // rows that one write removes beside its own
constexpr char kTerm[] = "term";
constexpr char kSchema[] = "schema";
constexpr int64_t kKeysSchema =
    1;  // schema of the keys; the tables of SQLite have a number of their own

constexpr size_t kDigits = 16;  // digits of a number in a key, so that keys sort by number
std::string Numbered(std::string_view prefix, int64_t number) {
  return absl::StrCat(std::string(prefix), absl::StrFormat("%016x", number));
}

std::string JobKey(const std::string& job, std::string_view rest) {
  return absl::StrCat("job/", job, "/", std::string(rest));
}
std::string EventsKey(const std::string& job, bool of_operators) {
  return absl::StrCat("event/", job, of_operators ? "/o/" : "/d/");
}

// Prefix of the copies of unreadable rows that a write has replaced.
constexpr char kDamaged[] = "damaged/";

// The job that a key "job/JOB/.." or "event/JOB/.." is of.
std::string JobOfKey(const std::string& key) {
  const std::vector<std::string> parts = absl::StrSplit(key, '/');
  return parts.size() > 1 ? parts[1] : "";
}

// Deletes the oldest rows below `prefix` so that with `added` more `keep` are left.
void Trim(const Rows& rows, const std::string& prefix, int64_t added, int64_t keep, Batch* batch) {
  const auto [first, last] = With(rows, prefix);
  int64_t surplus = std::min(std::distance(first, last) + added - keep, kMaxTrimmed);
  for (auto row = first; row != last && surplus > 0; ++row, --surplus) {
    batch->deletes.push_back(row->first);
  }
}

struct KeptPlacement {
  std::string key;  // without the part
  sqlite::Row row;

  int64_t version() const { return std::get<int64_t>(row[1]); }
  const std::string& digest() const { return std::get<sqlite::Bytes>(row[4]).bytes; }
};

bool IsOfPlacement(const sqlite::Row& row) {
  constexpr size_t kCells = 5;
  return row.size() == kCells && std::holds_alternative<int64_t>(row[1]) &&
         std::holds_alternative<sqlite::Bytes>(row[4]);
}

// Returns the key of the placement that a part belongs to.
std::string PlacementKey(const std::string& part) { return part.substr(0, part.rfind('/') + 1); }

struct Damage {
  std::vector<std::string> rows = {};  // unreadable ones, a sentence each
  std::set<std::string> jobs = {};     // jobs whose record or current placement is among them
};

std::string NoteOf(const std::vector<std::string>& rows) {
  constexpr ptrdiff_t kNamed = 4;
  const ptrdiff_t named = std::min(std::ssize(rows), kNamed);
  std::string note = absl::StrJoin(rows.begin(), rows.begin() + named, "; ");
  const ptrdiff_t more = std::ssize(rows) - named;
  if (more > 0) absl::StrAppend(&note, "; and ", more, " more unreadable rows");
  return note;
}

bool Knows(const Rows& rows, const std::string& job) {
  return rows.contains(JobKey(job, "record"));
}

// Returns the sequence of the newest event; 0 while there is none.
int64_t SequenceIn(const Rows& rows) {
  int64_t sequence = 0;
  for (auto [row, last] = With(rows, "event/"); row != last;) {
    const std::string own = row->first.substr(0, row->first.rfind('/') + 1);
    row = With(rows, own).second;
    int64_t newest = 0;
    if (absl::SimpleHexAtoi(std::prev(row)->first.substr(own.size()), &newest)) {
      sequence = std::max(sequence, newest);
    }
  }
  return sequence;
}

// The oldest events of jobs that are not known, `forgotten` among them, above `keep`.
std::vector<std::string> SurplusOrphans(const Rows& rows, bool of_operators, int32_t keep,
                                        const std::string& forgotten) {
  std::vector<std::pair<std::string, std::string>> found;  // sequence as text, key
  for (auto [row, last] = With(rows, "event/"); row != last; ++row) {
    const std::string job = JobOfKey(row->first);
    const std::string own = EventsKey(job, of_operators);
    if (!row->first.starts_with(own) || (Knows(rows, job) && job != forgotten)) continue;
    found.emplace_back(row->first.substr(own.size()), row->first);
  }
  std::sort(found.begin(), found.end());
  const auto surplus = std::max<int64_t>(0, std::ssize(found) - keep);
  std::vector<std::string> keys;
  keys.reserve(static_cast<size_t>(surplus));
  for (int64_t i = 0; i < surplus; ++i)
    keys.push_back(std::move(found[static_cast<size_t>(i)].second));
  return keys;
}

// A store of rows in etcd. It keeps no load windows, because a write for every window of every job
// would outnumber all other writes and fill etcd's history. The chart of a new leader begins with
// its own windows.
class EtcdStore : public Store {
 public:
  explicit EtcdStore(const EtcdStoreOptions& options) : options_(options), rows_(options.rows) {}

  absl::Status Load();

  absl::StatusOr<int64_t> ReadTerm() override;
  absl::Status WriteTerm(int64_t term) override;
  absl::StatusOr<std::vector<core::StoredJob>> ReadJobs() override;
  absl::Status WriteJob(const core::StoredJob& job) override;
  absl::Status WritePlan(const std::string& job, const core::Plan& plan) override;
  absl::Status ForgetJob(const std::string& job) override;
  absl::StatusOr<Placement> ReadPlacement(const std::string& job, int64_t version) override;
  absl::Status AppendEvent(absl::Time time, const core::JobEvent& event) override;
  absl::StatusOr<std::vector<StoredEvent>> ReadEvents(const std::string& job, int32_t limit,
                                                      int64_t after_sequence) override;
  absl::Status CheckFile() override { return options_.rows.may_write(); }
  void Close() override { rows_.Close(); }
  std::string warning() const override { return options_.rows.client->Trouble(); }
  std::string opening_note() const override { return note_; }

 private:
  std::string Where(const std::string& key) const {
    return absl::StrCat("etcd key ", options_.rows.prefix, "/", key);
  }
  absl::StatusOr<sqlite::Row> RowAt(Rows::const_iterator at) const {
    return sqlite::RowFromBytes(at->second, Where(at->first));
  }
  // 0 when there is none.
  absl::StatusOr<int64_t> NumberAt(const Rows& rows, const std::string& key) const;
  absl::StatusOr<JobRow> RecordAt(Rows::const_iterator record) const;
  absl::Status ReadPlacements(const Rows& rows, const absl::StatusOr<JobRow>& row,
                              core::StoredJob* job) const;
  // The readers leave out unreadable rows and add them to `damage`. A job whose record or current
  // placement is unreadable is paused.
  core::StoredJob ReadJob(const Rows& rows, Rows::const_iterator record, Damage* damage) const;
  std::vector<core::StoredJob> JobsIn(const Rows& rows, Damage* damage) const;
  std::vector<KeptPlacement> PlacementsOf(const Rows& rows, const std::string& job) const;
  std::vector<StoredEvent> EventsBelow(const Rows& rows, const std::string& prefix,
                                       Damage* damage) const;
  absl::StatusOr<std::vector<StoredEvent>> ReadEventsBelow(const std::string& prefix) const {
    return rows_.Read([&](const Rows& rows) -> absl::StatusOr<std::vector<StoredEvent>> {
      Damage known;  // from Load
      return EventsBelow(rows, prefix, &known);
    });
  }
  // Decodes all rows whose keys begin with `prefix`.
  template <class T>
  std::vector<T> Decoded(const Rows& rows, const std::string& prefix,
                         absl::StatusOr<T> (*decode)(const sqlite::Row&), Damage* damage) const;
  std::vector<Batch> CopiesOfDamaged(const Rows& rows, const std::string& job) const;
  std::vector<Batch> BatchesOf(const Rows& rows, const core::StoredJob& job) const;
  void AddPlacement(const Rows& rows, const core::StoredJob& job, std::vector<Batch>* before,
                    Batch* batch) const;

  const EtcdStoreOptions options_;
  FencedRows rows_;
  std::string note_;                    // written by Load alone, as the next one
  std::set<std::string> damaged_jobs_;  // paused
};

absl::StatusOr<int64_t> EtcdStore::NumberAt(const Rows& rows, const std::string& key) const {
  const auto row = rows.find(key);
  if (row == rows.end()) return 0;
  int64_t number = 0;
  if (absl::SimpleAtoi(row->second, &number) && number >= 0) return number;
  return absl::DataLossError(absl::StrCat(Where(key), " is no number"));
}

absl::Status EtcdStore::Load() {
  EPLB_RETURN_IF_ERROR(rows_.Load());
  return rows_.Read([this](const Rows& rows) -> absl::Status {
    Damage damage;
    const absl::StatusOr<int64_t> schema = NumberAt(rows, kSchema);
    if (schema.ok() && *schema > kKeysSchema) {
      return absl::FailedPreconditionError(absl::StrCat(Where(kSchema), " is ", *schema,
                                                        ", of a newer eplbd; this one reads ",
                                                        kKeysSchema, " at most"));
    }
    for (const absl::Status& status : {schema.status(), NumberAt(rows, kTerm).status()}) {
      if (!status.ok()) damage.rows.emplace_back(status.message());
    }
    (void)JobsIn(rows, &damage);
    (void)EventsBelow(rows, "event/", &damage);
    note_ = NoteOf(damage.rows);
    damaged_jobs_ = std::move(damage.jobs);
    return absl::OkStatus();
  });
}

absl::StatusOr<int64_t> EtcdStore::ReadTerm() {
  return rows_.Read([this](const Rows& rows) -> absl::StatusOr<int64_t> {
    return std::max(NumberAt(rows, kTerm).value_or(0), options_.least_term);
  });
}

absl::Status EtcdStore::WriteTerm(int64_t term) {
  return rows_.Write([&](const Rows& rows) {
    const int64_t known = NumberAt(rows, kTerm).value_or(0);
    return std::vector<Batch>{{.puts = {{kTerm, absl::StrCat(std::max(term, known))},
                                        {kSchema, absl::StrCat(kKeysSchema)}}}};
  });
}

std::vector<KeptPlacement> EtcdStore::PlacementsOf(const Rows& rows, const std::string& job) const {
  std::vector<KeptPlacement> placements;
  for (auto [row, last] = With(rows, JobKey(job, "placement/")); row != last;) {
    const std::string key = PlacementKey(row->first);
    std::string bytes;
    for (; row != last && row->first.starts_with(key); ++row) bytes += row->second;
    absl::StatusOr<sqlite::Row> cells = sqlite::RowFromBytes(bytes, Where(key));
    // An incomplete placement is of a write that ended between its parts. No record names it.
    if (cells.ok() && IsOfPlacement(*cells)) {
      placements.push_back({.key = key, .row = *std::move(cells)});
    }
  }
  return placements;
}

absl::StatusOr<JobRow> EtcdStore::RecordAt(Rows::const_iterator record) const {
  EPLB_ASSIGN_OR_RETURN(const sqlite::Row cells, RowAt(record));
  absl::StatusOr<JobRow> row = JobOf(cells);
  if (!row.ok()) {
    return absl::DataLossError(absl::StrCat(Where(record->first), ": ", row.status().message()));
  }
  if (row->job == JobOfKey(record->first)) return row;
  return absl::DataLossError(absl::StrCat(Where(record->first), " is of another job"));
}

// Fills in the history and the placement that `row` names. errors: DataLoss for an unreadable
// record, and for a placement that is missing or unreadable.
absl::Status EtcdStore::ReadPlacements(const Rows& rows, const absl::StatusOr<JobRow>& row,
                                       core::StoredJob* job) const {
  for (const KeptPlacement& one : PlacementsOf(rows, job->job)) {
    core::RanVersion ran{.version = one.version()};
    if (one.digest().size() != ran.digest.bytes.size()) continue;
    std::copy(one.digest().begin(), one.digest().end(), ran.digest.bytes.begin());
    job->history.push_back(ran);
    job->next_version = std::max(job->next_version, one.version() + 1);
    if (!row.ok() || one.version() != row->version || one.digest() != row->digest) continue;
    absl::StatusOr<PlacementRow> placement = PlacementRowOf(one.row, Where(one.key));
    if (placement.ok()) job->placement = std::move(placement->placement);
  }
  EPLB_RETURN_IF_ERROR(row.status());
  if (row->digest.empty() || job->placement) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(Where(JobKey(job->job, "placement/")), ": version ",
                                          row->version,
                                          ", the current one, is missing or damaged"));
}

template <class T>
std::vector<T> EtcdStore::Decoded(const Rows& rows, const std::string& prefix,
                                  absl::StatusOr<T> (*decode)(const sqlite::Row&),
                                  Damage* damage) const {
  std::vector<T> values;
  for (auto [row, last] = With(rows, prefix); row != last; ++row) {
    const absl::StatusOr<sqlite::Row> cells = RowAt(row);
    absl::StatusOr<T> value = cells.ok() ? decode(*cells) : cells.status();
    if (value.ok()) {
      values.push_back(*std::move(value));
    } else if (!cells.ok()) {
      damage->rows.emplace_back(cells.status().message());
    } else {
      damage->rows.push_back(absl::StrCat(Where(row->first), ": ", value.status().message()));
    }
  }
  return values;
}

core::StoredJob EtcdStore::ReadJob(const Rows& rows, Rows::const_iterator record,
                                   Damage* damage) const {
  core::StoredJob job{.job = JobOfKey(record->first)};
  absl::StatusOr<JobRow> row = RecordAt(record);
  if (row.ok()) {
    job.version = row->version;
    job.next_version = row->next_version;
    job.memory = std::move(row->memory);
    job.end = std::move(row->end);
  }
  if (const absl::Status status = ReadPlacements(rows, row, &job); !status.ok()) {
    damage->rows.push_back(absl::StrCat("job ", job.job, " is paused: ", status.message()));
    damage->jobs.insert(job.job);
    // An operator may have paused the job, and only the record had it.
    job.memory.pause_reason =
        absl::StrCat(status.message(), "; look at the job, then use eplbctl resume",
                     job.memory.paused ? absl::StrCat("; before: ", job.memory.pause_reason) : "");
    job.memory.paused = true;
    job.memory.paused_by_lost_store = true;
  }
  job.requests = Decoded(rows, JobKey(job.job, "request/"), &RequestOf, damage);
  job.plans = Decoded(rows, JobKey(job.job, "plan/"), &PlanOf, damage);
  return job;
}

std::vector<core::StoredJob> EtcdStore::JobsIn(const Rows& rows, Damage* damage) const {
  std::vector<core::StoredJob> jobs;
  for (auto [row, last] = With(rows, "job/"); row != last; ++row) {
    const std::string job = JobOfKey(row->first);
    if (row->first != JobKey(job, "record")) continue;
    if (const absl::Status name = wire::CheckPlainName("job", job); !name.ok()) {
      damage->rows.push_back(absl::StrCat(Where(row->first), ": ", name.message()));
      continue;
    }
    jobs.push_back(ReadJob(rows, row, damage));
  }
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a.job < b.job; });
  return jobs;
}

absl::StatusOr<std::vector<core::StoredJob>> EtcdStore::ReadJobs() {
  return rows_.Read([this](const Rows& rows) -> absl::StatusOr<std::vector<core::StoredJob>> {
    Damage known;  // from Load
    return JobsIn(rows, &known);
  });
}

// Adds the placement unless it is kept. The one in force stays, however old.
void EtcdStore::AddPlacement(const Rows& rows, const core::StoredJob& job,
                             std::vector<Batch>* before, Batch* batch) const {
  const std::vector<KeptPlacement> kept = PlacementsOf(rows, job.job);
  const std::string digest = BytesOf(DigestOf(*job.placement));
  const bool is_known = std::any_of(kept.begin(), kept.end(), [&](const KeptPlacement& one) {
    return one.version() == job.version && one.digest() == digest;
  });
  if (is_known) return;
  const std::string all = JobKey(job.job, "placement/");
  const auto [first, last] = With(rows, all);
  int64_t written = 1;
  if (first != last) {
    const std::string newest = std::prev(last)->first.substr(all.size(), kDigits);
    if (absl::SimpleHexAtoi(newest, &written)) ++written;
  }
  const std::string own = Numbered(all, written) + "/";
  // Also what a write left that ended between its parts.
  const int64_t surplus = std::ssize(kept) + 1 - options_.limits.max_history;
  std::vector<std::string> stay;
  for (int64_t i = std::max<int64_t>(surplus, 0); i < std::ssize(kept); ++i) {
    stay.push_back(kept[static_cast<size_t>(i)].key);
  }
  int64_t removed = 0;
  for (auto row = first; row != last && removed < kMaxTrimmed; ++row) {
    const std::string key = PlacementKey(row->first);
    if (std::find(stay.begin(), stay.end(), key) != stay.end()) continue;
    batch->deletes.push_back(row->first);
    ++removed;
  }
  const std::string bytes = sqlite::RowToBytes(PlacementRowOf(job, written));
  for (size_t begin = 0, part = 0; begin < bytes.size(); begin += options_.part_bytes, ++part) {
    const std::string key = absl::StrCat(own, absl::StrFormat("%04x", part));
    std::string value = bytes.substr(begin, options_.part_bytes);
    const bool is_last = begin + options_.part_bytes >= bytes.size();
    if (is_last) {
      batch->puts[key] = std::move(value);
    } else {
      before->push_back({.puts = {{key, std::move(value)}}});
    }
  }
}

// Returns copies of the job's unreadable rows, which the next write of the job replaces. Skips the
// copies that an earlier attempt has made.
std::vector<Batch> EtcdStore::CopiesOfDamaged(const Rows& rows, const std::string& job) const {
  std::vector<Batch> copies;
  if (!damaged_jobs_.contains(job)) return copies;
  const auto copy = [&rows, &copies](const auto& row) {
    const std::string key = kDamaged + row.first;
    const auto there = rows.find(key);
    if (there != rows.end() && there->second == row.second) return;
    copies.push_back({.puts = {{key, row.second}}});
  };
  const auto record = rows.find(JobKey(job, "record"));
  if (record == rows.end()) return copies;
  const absl::StatusOr<JobRow> row = RecordAt(record);
  if (!row.ok()) copy(*record);
  const std::vector<KeptPlacement> kept = PlacementsOf(rows, job);
  const bool is_there = std::any_of(kept.begin(), kept.end(), [&row](const KeptPlacement& one) {
    return row.ok() && one.version() == row->version && one.digest() == row->digest;
  });
  if (is_there || (row.ok() && row->digest.empty())) return copies;
  for (auto [part, last] = With(rows, JobKey(job, "placement/")); part != last; ++part) {
    const std::string key = PlacementKey(part->first);
    const bool is_sound = std::any_of(kept.begin(), kept.end(),
                                      [&key](const KeptPlacement& one) { return one.key == key; });
    if (!is_sound) copy(*part);
  }
  return copies;
}

// The last one has the record.
std::vector<Batch> EtcdStore::BatchesOf(const Rows& rows, const core::StoredJob& job) const {
  std::vector<Batch> batches = CopiesOfDamaged(rows, job.job);
  Batch batch;
  if (job.placement) AddPlacement(rows, job, &batches, &batch);
  batch.puts[JobKey(job.job, "record")] = sqlite::RowToBytes(RowOf(job));
  if (job.done) {
    const std::string all = JobKey(job.job, "request/");
    const auto [first, last] = With(rows, all);
    int64_t newest = 0;
    if (first != last) {
      (void)absl::SimpleHexAtoi(std::prev(last)->first.substr(all.size()), &newest);
    }
    batch.puts[Numbered(all, newest + 1)] = sqlite::RowToBytes(RowOf(job.job, *job.done));
    Trim(rows, all, 1, options_.limits.max_requests, &batch);
  }
  batches.push_back(std::move(batch));
  return batches;
}

absl::Status EtcdStore::WriteJob(const core::StoredJob& job) {
  return rows_.Write([&](const Rows& rows) { return BatchesOf(rows, job); });
}

absl::Status EtcdStore::WritePlan(const std::string& job, const core::Plan& plan) {
  const std::string all = JobKey(job, "plan/");
  const std::string key = Numbered(all, plan.plan);
  return rows_.Write([&](const Rows& rows) {
    if (!Knows(rows, job)) return std::vector<Batch>{};  // forgotten meanwhile
    Batch batch{.puts = {{key, sqlite::RowToBytes(RowOf(job, plan))}}};
    Trim(rows, all, rows.contains(key) ? 0 : 1, options_.limits.max_plans, &batch);
    return std::vector<Batch>{std::move(batch)};
  });
}

absl::Status EtcdStore::ForgetJob(const std::string& job) {
  return rows_.Write([&](const Rows& rows) {
    std::vector<Batch> batches(1);
    batches.back().deleted_prefixes = {JobKey(job, ""), kDamaged + JobKey(job, "")};
    for (const bool of_operators : {false, true}) {
      const int32_t keep =
          of_operators ? options_.limits.max_operator_events : options_.limits.max_events;
      for (std::string& key : SurplusOrphans(rows, of_operators, keep, job)) {
        if (batches.back().deletes.size() == kMaxOperations) batches.emplace_back();
        batches.back().deletes.push_back(std::move(key));
      }
    }
    return batches;
  });
}

absl::StatusOr<Placement> EtcdStore::ReadPlacement(const std::string& job, int64_t version) {
  return rows_.Read([&](const Rows& rows) -> absl::StatusOr<Placement> {
    for (const KeptPlacement& one : PlacementsOf(rows, job)) {
      if (one.version() != version) continue;
      EPLB_ASSIGN_OR_RETURN(PlacementRow placement, PlacementRowOf(one.row, Where(one.key)));
      return std::move(placement.placement);
    }
    return absl::NotFoundError(absl::StrCat("version ", version, " of job ", job, " is not kept"));
  });
}

absl::Status EtcdStore::AppendEvent(absl::Time time, const core::JobEvent& event) {
  const bool of_operators = !event.actor.empty();
  const std::string all = EventsKey(event.job, of_operators);
  return rows_.Write([&](const Rows& rows) {
    const StoredEvent stored{.sequence = SequenceIn(rows) + 1, .time = time, .event = event};
    Batch batch{.puts = {{Numbered(all, stored.sequence), sqlite::RowToBytes(RowOf(stored))}}};
    Trim(rows, all, 1,
         of_operators ? options_.limits.max_operator_events : options_.limits.max_events, &batch);
    return std::vector<Batch>{std::move(batch)};
  });
}

// By sequence.
std::vector<StoredEvent> EtcdStore::EventsBelow(const Rows& rows, const std::string& prefix,
                                                Damage* damage) const {
  std::vector<StoredEvent> events = Decoded(rows, prefix, &EventOf, damage);
  std::sort(events.begin(), events.end(),
            [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return events;
}

absl::StatusOr<std::vector<StoredEvent>> EtcdStore::ReadEvents(const std::string& job,
                                                               int32_t limit,
                                                               int64_t after_sequence) {
  EPLB_ASSIGN_OR_RETURN(std::vector<StoredEvent> events,
                        ReadEventsBelow(absl::StrCat("event/", job, "/")));
  std::erase_if(events, [&](const auto& one) { return one.sequence <= after_sequence; });
  const auto kept = std::min<int64_t>(std::ssize(events), std::max(limit, 0));
  // After a point the oldest events are returned, so that a reader that goes on misses none.
  const auto first = after_sequence == 0 ? events.end() - kept : events.begin();
  std::vector<StoredEvent> result(first, first + kept);
  std::reverse(result.begin(), result.end());
  return result;
}

}  // namespace

StoreLimits LimitsInEtcd(StoreLimits wanted) {
  return {
      .max_events = std::min(wanted.max_events, kMostInEtcd.max_events),
      .max_operator_events = std::min(wanted.max_operator_events, kMostInEtcd.max_operator_events),
      .max_history = std::min(wanted.max_history, kMostInEtcd.max_history),
      .max_plans = std::min(wanted.max_plans, kMostInEtcd.max_plans),
      .max_requests = std::min(wanted.max_requests, kMostInEtcd.max_requests)};
}

absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(const EtcdStoreOptions& options) {
  auto store = std::make_unique<EtcdStore>(options);
  EPLB_RETURN_IF_ERROR(store->Load());
  return store;
}

absl::StatusOr<bool> IsAnyStored(Client* client, const std::string& prefix,
                                 const std::set<std::string>& jobs, absl::Time deadline) {
  pb::TxnRequest request;
  for (const std::string& job : jobs) {
    request.add_success()->mutable_request_range()->set_key(
        absl::StrCat(prefix, "/", JobKey(job, "record")));
  }
  EPLB_ASSIGN_OR_RETURN(const pb::TxnResponse found, client->Txn(request, deadline));
  return std::any_of(found.responses().begin(), found.responses().end(),
                     [](const auto& one) { return !one.response_range().kvs().empty(); });
}

}  // namespace eplb::etcd
