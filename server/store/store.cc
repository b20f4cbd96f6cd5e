// The store's values as rows under ordered keys, and what happens when a row cannot be read.
#include "server/store/store.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/digest.h"
#include "proto/wire/names.h"
#include "server/store/checked_rows.h"
#include "server/store/keys.h"
#include "server/store/large_values.h"

namespace eplb {
namespace {

constexpr char kDamaged[] = "damaged/";  // copies of unreadable rows that a write has replaced

// Returns each NAME of the keys "PREFIX NAME/..", in the order of the keys.
std::vector<std::string> NamesBelow(const KeyReader& reader, const std::string& prefix) {
  std::vector<std::string> names;
  for (std::string after;; after = EndOfPrefix(prefix + names.back() + "/")) {
    const KeyReader::Pairs found =
        reader.Find({.prefix = prefix, .after = after, .with_values = false, .limit = 1});
    if (found.empty()) return names;
    const std::string rest = found.front().first.substr(prefix.size());
    names.push_back(rest.substr(0, rest.find('/')));
  }
}

// Returns the number of the newest key that begins with `prefix`; 0 while there is none.
int64_t NewestNumber(const KeyReader& reader, const std::string& prefix) {
  const KeyReader::Pairs newest =
      reader.Find({.prefix = prefix, .reverse = true, .with_values = false, .limit = 1});
  return newest.empty() ? 0 : NumberOf(newest.front().first);
}

// Deletes the oldest rows that begin with `prefix` so that with `added` more `keep` are left.
void Trim(const KeyReader& reader, const std::string& prefix, int64_t added, int64_t keep,
          Batch* batch) {
  const int64_t surplus = std::min(reader.Count(prefix) + added - keep, kMaxTrimmed + added);
  if (surplus <= 0) return;
  for (const auto& [key, none] :
       reader.Find({.prefix = prefix, .with_values = false, .limit = surplus})) {
    batch->deletes.push_back(key);
  }
}

bool Knows(const KeyReader& reader, const std::string& job) {
  return reader.Get(JobKey(job, "record")).has_value();
}

// Keys with the numbers at their ends, which may be of several jobs.
using NumberedKeys = std::vector<std::pair<int64_t, std::string>>;

void AddKeys(const KeyReader& reader, const std::string& prefix, int64_t limit,
             NumberedKeys* keys) {
  for (const auto& [key, none] :
       reader.Find({.prefix = prefix, .with_values = false, .limit = limit})) {
    keys->emplace_back(NumberOf(key), key);
  }
}

// Returns the keys but the newest `keep`.
std::vector<std::string> AllButNewest(NumberedKeys keys, int64_t keep) {
  std::ranges::sort(keys);
  std::vector<std::string> oldest;
  for (int64_t i = 0; i < std::ssize(keys) - keep; ++i) {
    oldest.push_back(std::move(keys[static_cast<size_t>(i)].second));
  }
  return oldest;
}

// Returns the oldest events above `keep` of jobs that are not known, `forgotten` among them.
std::vector<std::string> SurplusOrphans(const KeyReader& reader, bool of_operators, int32_t keep,
                                        const std::string& forgotten) {
  NumberedKeys found;
  for (const std::string& job : NamesBelow(reader, kEventKeys)) {
    if (Knows(reader, job) && job != forgotten) continue;
    AddKeys(reader, EventsKey(job, of_operators), KeyRange().limit, &found);
  }
  return AllButNewest(std::move(found), keep);
}

// added: windows by job, which the batch adds.
void TrimWindows(const KeyReader& reader, const std::map<std::string, int64_t>& added,
                 const StoreLimits& limits, Batch* batch) {
  int64_t surplus = reader.Count(kWindowKeys) - limits.max_windows_of_all;
  for (const auto& [job, number] : added) {
    Trim(reader, WindowsKey(job), number, limits.max_windows, batch);
    surplus += number;
  }
  surplus -= std::ssize(batch->deletes);
  if (surplus <= 0) return;
  NumberedKeys oldest;
  for (const std::string& job : NamesBelow(reader, kWindowKeys)) {
    AddKeys(reader, WindowsKey(job), surplus + std::ssize(batch->deletes), &oldest);
  }
  const std::set<std::string> trimmed(batch->deletes.begin(), batch->deletes.end());
  std::erase_if(oldest, [&](const auto& one) { return trimmed.contains(one.second); });
  const int64_t others = std::ssize(oldest) - surplus;
  for (std::string& key : AllButNewest(std::move(oldest), others)) {
    batch->deletes.push_back(std::move(key));
  }
}

bool IsPlacementOf(const core::RanVersion& ran, const JobRow& job) {
  return ran.version == job.version && BytesOf(ran.digest) == job.digest;
}

}  // namespace

// The store's values at one moment. Unreadable rows are left out and named in `damage`.
class Store::View {
 public:
  struct KeptPlacement {
    std::string key;  // without the part
    core::RanVersion ran;
  };

  View(const KeyReader& reader, const Store& store)
      : reader_(reader), where_(store.options_.where), ran_versions_(store.ran_versions_) {}

  // 0 when there is none.
  absl::StatusOr<int64_t> NumberAt(const std::string& key) const;
  std::vector<core::StoredJob> Jobs();
  absl::StatusOr<JobRow> RecordOf(const std::string& job) const;
  // Complete ones, in the order in which they were written.
  std::vector<KeptPlacement> PlacementsOf(const std::string& job) const;
  absl::StatusOr<PlacementRow> PlacementAt(const std::string& key) const;
  // Returns the newest complete ones; none if there are none.
  std::vector<TypicalLoad> TypicalLoadsOf(const std::string& job);
  template <class T>
  std::vector<T> Decoded(const KeyRange& range, absl::StatusOr<T> (*decode)(const sqlite::Row&));
  std::string Where(const std::string& key) const { return where_ + key; }

  std::vector<std::string> damage;     // a sentence for each unreadable row
  std::set<std::string> damaged_jobs;  // jobs whose record or current placement is among them

 private:
  core::StoredJob ReadJob(const std::string& name);
  // Fills in the history and the placement that `record` names. A job without a readable record or
  // without that placement is paused.
  void ReadPlacements(const absl::StatusOr<JobRow>& record, core::StoredJob* job);
  absl::StatusOr<sqlite::Row> RowInParts(const std::string& key) const;
  absl::StatusOr<core::RanVersion> RanVersionAt(const std::string& key) const;

  const KeyReader& reader_;
  const std::string& where_;
  RanVersions& ran_versions_;
};

absl::StatusOr<int64_t> Store::View::NumberAt(const std::string& key) const {
  const std::optional<std::string> value = reader_.Get(key);
  int64_t number = 0;
  if (!value || (absl::SimpleAtoi(*value, &number) && number >= 0)) return number;
  return DataLoss(Where(key), " is no number");
}

absl::StatusOr<JobRow> Store::View::RecordOf(const std::string& job) const {
  const std::string key = JobKey(job, "record");
  EPLB_ASSIGN_OR_RETURN(const sqlite::Row cells,
                        sqlite::RowFromBytes(reader_.Get(key).value_or(""), Where(key)));
  absl::StatusOr<JobRow> row = JobOf(cells);
  if (!row.ok()) return DataLoss(Where(key), ": ", row.status().message());
  if (row->job == job) return row;
  return DataLoss(Where(key), " is of another job");
}

absl::StatusOr<sqlite::Row> Store::View::RowInParts(const std::string& key) const {
  std::string bytes;
  for (const auto& [part, value] : reader_.Find({.prefix = key + "/"})) bytes += value;
  return sqlite::RowFromBytes(bytes, Where(key));
}

absl::StatusOr<PlacementRow> Store::View::PlacementAt(const std::string& key) const {
  EPLB_ASSIGN_OR_RETURN(const sqlite::Row cells, RowInParts(key));
  return PlacementRowOf(cells, Where(key));
}

absl::StatusOr<core::RanVersion> Store::View::RanVersionAt(const std::string& key) const {
  EPLB_ASSIGN_OR_RETURN(const sqlite::Row cells, RowInParts(key));
  return RanVersionOf(cells);
}

std::vector<Store::View::KeptPlacement> Store::View::PlacementsOf(const std::string& job) const {
  const std::lock_guard lock(ran_versions_.mutex);
  std::map<std::string, core::RanVersion>& known = ran_versions_.by_job[job];
  std::map<std::string, core::RanVersion> ran_by_key;
  std::vector<KeptPlacement> placements;
  std::string key;
  for (const auto& [part, none] :
       reader_.Find({.prefix = JobKey(job, "placement/"), .with_values = false})) {
    if (WholeOf(part) == key) continue;
    key = WholeOf(part);
    const auto found = known.find(key);
    const absl::StatusOr<core::RanVersion> ran =
        found != known.end() ? found->second : RanVersionAt(key);
    // An incomplete placement is of a write that ended between its parts. No record names it.
    if (!ran.ok()) continue;
    ran_by_key.emplace(key, *ran);
    placements.push_back({.key = key, .ran = *ran});
  }
  known = std::move(ran_by_key);
  if (placements.empty()) ran_versions_.by_job.erase(job);
  return placements;
}

void Store::View::ReadPlacements(const absl::StatusOr<JobRow>& record, core::StoredJob* job) {
  for (const KeptPlacement& one : PlacementsOf(job->job)) {
    job->history.push_back(one.ran);
    job->next_version = std::max(job->next_version, one.ran.version + 1);
    if (!record.ok() || !IsPlacementOf(one.ran, *record)) continue;
    absl::StatusOr<PlacementRow> placement = PlacementAt(one.key);
    if (placement.ok()) job->placement = std::move(placement->placement);
  }
  absl::Status status = record.status();
  if (record.ok() && !record->digest.empty() && !job->placement) {
    status = DataLoss(Where(JobKey(job->job, "placement/")), ": version ", record->version,
                      ", the current one, is missing or damaged");
  }
  if (status.ok()) return;
  damage.push_back(absl::StrCat("job ", job->job, " is paused: ", status.message()));
  damaged_jobs.insert(job->job);
  // An operator may have paused the job, and only the record had it.
  job->memory.pause_reason =
      absl::StrCat(status.message(), "; look at the job, then use eplbctl resume",
                   job->memory.paused ? absl::StrCat("; before: ", job->memory.pause_reason) : "");
  job->memory.paused = true;
  job->memory.paused_by_lost_store = true;
}

std::vector<TypicalLoad> Store::View::TypicalLoadsOf(const std::string& job) {
  absl::Status unreadable;
  std::string key;
  for (const auto& [part, none] :
       reader_.Find({.prefix = TypicalLoadsKey(job), .reverse = true, .with_values = false})) {
    if (WholeOf(part) == key) continue;
    key = WholeOf(part);
    const absl::StatusOr<sqlite::Row> cells = RowInParts(key);
    absl::StatusOr<std::vector<TypicalLoad>> loads =
        cells.ok() ? eplb::TypicalLoadsOf(*cells) : cells.status();
    if (loads.ok()) return *std::move(loads);
    unreadable = loads.status();
  }
  if (!unreadable.ok()) damage.push_back(absl::StrCat(Where(key), ": ", unreadable.message()));
  return {};
}

template <class T>
std::vector<T> Store::View::Decoded(const KeyRange& range,
                                    absl::StatusOr<T> (*decode)(const sqlite::Row&)) {
  std::vector<T> values;
  for (const auto& [key, bytes] : reader_.Find(range)) {
    const absl::StatusOr<sqlite::Row> cells = sqlite::RowFromBytes(bytes, Where(key));
    absl::StatusOr<T> value = cells.ok() ? decode(*cells) : cells.status();
    if (value.ok()) {
      values.push_back(*std::move(value));
    } else if (!cells.ok()) {
      damage.emplace_back(cells.status().message());
    } else {
      damage.push_back(absl::StrCat(Where(key), ": ", value.status().message()));
    }
  }
  return values;
}

core::StoredJob Store::View::ReadJob(const std::string& name) {
  core::StoredJob job{.job = name};
  absl::StatusOr<JobRow> record = RecordOf(name);
  if (record.ok()) {
    job.version = record->version;
    job.next_version = record->next_version;
    job.memory = std::move(record->memory);
    job.end = std::move(record->end);
  }
  ReadPlacements(record, &job);
  job.requests = Decoded({.prefix = JobKey(name, "request/")}, &RequestOf);
  job.plans = Decoded({.prefix = JobKey(name, "plan/")}, &PlanOf);
  job.typical_loads = TypicalLoadsOf(name);
  return job;
}

std::vector<core::StoredJob> Store::View::Jobs() {
  std::vector<core::StoredJob> jobs;
  std::vector<std::string> names = NamesBelow(reader_, kJobKeys);
  std::ranges::sort(names);
  for (const std::string& name : names) {
    if (!Knows(reader_, name)) continue;
    if (const absl::Status plain = wire::CheckPlainName("job", name); plain.ok()) {
      jobs.push_back(ReadJob(name));
    } else {
      damage.push_back(absl::StrCat(Where(JobKey(name, "record")), ": ", plain.message()));
    }
  }
  return jobs;
}

Store::Store(std::unique_ptr<KeyValues> rows, StoreOptions options)
    : options_(std::move(options)), rows_(std::move(rows)) {}

absl::StatusOr<std::vector<std::string>> Store::Load() {
  absl::Status schema_known;
  std::vector<std::string> damage;
  EPLB_RETURN_IF_ERROR(rows_->Read([&](const KeyReader& reader) {
    View view(reader, *this);
    const absl::StatusOr<int64_t> schema = view.NumberAt(kSchemaKey);
    if (schema.ok() && *schema > kKeysSchema) {
      schema_known =
          FailedPrecondition(view.Where(kSchemaKey), " is ", *schema,
                             ", of a newer eplbd; this one reads ", kKeysSchema, " at most");
      return;
    }
    for (const char* key : {kSchemaKey, kTermKey, kMovedAsideKey}) {
      const absl::Status number = view.NumberAt(key).status();
      if (!number.ok()) view.damage.emplace_back(number.message());
    }
    (void)view.Jobs();
    newest_event_ = 0;
    for (const std::string& job : NamesBelow(reader, kEventKeys)) {
      for (const bool of_operators : {false, true}) {
        const std::string all = EventsKey(job, of_operators);
        (void)view.Decoded({.prefix = all}, &EventOf);
        newest_event_ = std::max(newest_event_, NewestNumber(reader, all));
      }
    }
    damage = std::move(view.damage);
    damaged_jobs_ = std::move(view.damaged_jobs);
  }));
  EPLB_RETURN_IF_ERROR(schema_known);
  return damage;
}

absl::StatusOr<int64_t> Store::ReadNumber(const std::string& key) const {
  absl::StatusOr<int64_t> number;
  EPLB_RETURN_IF_ERROR(
      rows_->Read([&](const KeyReader& reader) { number = View(reader, *this).NumberAt(key); }));
  return number;
}

absl::StatusOr<int64_t> Store::ReadTerm() const {
  const absl::StatusOr<int64_t> term = ReadNumber(kTermKey);
  if (absl::IsDataLoss(term.status()) && options_.least_term > 0) return options_.least_term;
  EPLB_RETURN_IF_ERROR(term.status());
  return std::max(*term, options_.least_term);
}

absl::Status Store::WriteTerm(int64_t term) {
  return rows_->Write([&](const KeyReader& reader) {
    const int64_t known = View(reader, *this).NumberAt(kTermKey).value_or(0);
    return std::vector<Batch>{{.puts = {{kTermKey, absl::StrCat(std::max(term, known))},
                                        {kSchemaKey, absl::StrCat(kKeysSchema)}}}};
  });
}

absl::StatusOr<std::optional<absl::Time>> Store::ReadMovedAside() const {
  EPLB_ASSIGN_OR_RETURN(const int64_t micros, ReadNumber(kMovedAsideKey));
  return micros == 0 ? std::nullopt : std::optional(absl::FromUnixMicros(micros));
}

absl::StatusOr<std::vector<core::StoredJob>> Store::ReadJobs() const {
  std::vector<core::StoredJob> jobs;
  EPLB_RETURN_IF_ERROR(
      rows_->Read([&](const KeyReader& reader) { jobs = View(reader, *this).Jobs(); }));
  return jobs;
}

// Adds the placement unless it is kept. The current one stays, however old.
void Store::AddPlacement(const KeyReader& reader, const core::StoredJob& job,
                         std::vector<Batch>* before, Batch* batch) const {
  const std::vector<View::KeptPlacement> kept = View(reader, *this).PlacementsOf(job.job);
  const core::RanVersion ran{.version = job.version, .digest = DigestOf(*job.placement)};
  if (std::ranges::any_of(kept, [&](const auto& one) { return one.ran == ran; })) {
    return;
  }
  // Removes also what a write left that ended between its parts.
  std::set<std::string> stay;
  const int64_t surplus = std::ssize(kept) + 1 - options_.limits.max_history;
  for (int64_t i = std::max<int64_t>(surplus, 0); i < std::ssize(kept); ++i) {
    stay.insert(kept[static_cast<size_t>(i)].key);
  }
  const std::string all = JobKey(job.job, "placement/");
  const int64_t written = RemoveOthers(reader, all, stay, batch);
  AddInParts(all, written, sqlite::RowToBytes(PlacementRowOf(job, written)), options_.part_bytes,
             before, batch);
}

// Returns copies of the job's unreadable rows, which the next write of the job replaces. Skips the
// copies that an earlier attempt has made.
std::vector<Batch> Store::CopiesOfDamaged(const KeyReader& reader, const std::string& job) const {
  std::vector<Batch> copies;
  if (!damaged_jobs_.contains(job) || !Knows(reader, job)) return copies;
  const auto copy = [&](const std::string& key) {
    const std::optional<std::string> value = reader.Get(key);
    if (value && reader.Get(kDamaged + key) != value) {
      copies.push_back({.puts = {{kDamaged + key, *value}}});
    }
  };
  const View view(reader, *this);
  const absl::StatusOr<JobRow> record = view.RecordOf(job);
  if (!record.ok()) copy(JobKey(job, "record"));
  std::set<std::string> sound;
  for (const View::KeptPlacement& one : view.PlacementsOf(job)) {
    if (record.ok() && IsPlacementOf(one.ran, *record)) return copies;
    sound.insert(one.key);
  }
  if (record.ok() && record->digest.empty()) return copies;
  for (const auto& [part, none] :
       reader.Find({.prefix = JobKey(job, "placement/"), .with_values = false})) {
    if (!sound.contains(WholeOf(part))) copy(part);
  }
  return copies;
}

absl::Status Store::WriteJob(const core::StoredJob& job) {
  return rows_->Write([&](const KeyReader& reader) {
    std::vector<Batch> batches = CopiesOfDamaged(reader, job.job);
    Batch batch;  // the last one, with the record
    if (job.placement) AddPlacement(reader, job, &batches, &batch);
    batch.puts[JobKey(job.job, "record")] = sqlite::RowToBytes(RowOf(job));
    if (job.done) {
      const std::string all = JobKey(job.job, "request/");
      batch.puts[Numbered(all, NewestNumber(reader, all) + 1)] =
          sqlite::RowToBytes(RowOf(job.job, *job.done));
      Trim(reader, all, 1, options_.limits.max_requests, &batch);
    }
    batches.push_back(std::move(batch));
    return batches;
  });
}

absl::Status Store::WritePlan(const std::string& job, const v1::Plan& plan) {
  const std::string all = JobKey(job, "plan/");
  const std::string key = Numbered(all, static_cast<int64_t>(plan.plan()));
  return rows_->Write([&](const KeyReader& reader) {
    if (!Knows(reader, job)) return std::vector<Batch>();
    Batch batch{.puts = {{key, sqlite::RowToBytes(RowOf(job, plan))}}};
    Trim(reader, all, reader.Get(key) ? 0 : 1, options_.limits.max_plans, &batch);
    return std::vector<Batch>{std::move(batch)};
  });
}

absl::Status Store::WriteTypicalLoads(const std::string& job, std::span<const TypicalLoad> loads) {
  const std::string all = TypicalLoadsKey(job);
  return rows_->Write([&](const KeyReader& reader) {
    if (!Knows(reader, job)) return std::vector<Batch>();
    std::vector<Batch> batches;
    Batch batch;
    const int64_t written = RemoveOthers(reader, all, {}, &batch);
    AddInParts(all, written, sqlite::RowToBytes(RowOf(job, loads)), options_.part_bytes, &batches,
               &batch);
    batches.push_back(std::move(batch));
    return batches;
  });
}

absl::Status Store::ForgetJob(const std::string& job) {
  return rows_->Write([&](const KeyReader& reader) {
    std::vector<Batch> batches(1);
    batches.back().deleted_prefixes = {JobKey(job, ""), kDamaged + JobKey(job, ""), WindowsKey(job),
                                       TypicalLoadsKey(job)};
    for (const bool of_operators : {false, true}) {
      for (std::string& key : SurplusOrphans(reader, of_operators, KeptEvents(of_operators), job)) {
        if (batches.back().deletes.size() == kMaxOperations) batches.emplace_back();
        batches.back().deletes.push_back(std::move(key));
      }
    }
    return batches;
  });
}

absl::StatusOr<Placement> Store::ReadPlacement(const std::string& job, int64_t version) const {
  absl::StatusOr<PlacementRow> row = NotFound("version ", version, " of job ", job, " is not kept");
  EPLB_RETURN_IF_ERROR(rows_->Read([&](const KeyReader& reader) {
    const View view(reader, *this);
    for (const View::KeptPlacement& one : view.PlacementsOf(job)) {
      if (one.ran.version == version && absl::IsNotFound(row.status())) {
        row = view.PlacementAt(one.key);
      }
    }
  }));
  EPLB_RETURN_IF_ERROR(row.status());
  return std::move(row->placement);
}

absl::Status Store::AppendEvent(absl::Time time, v1::JobEvent event) {
  const bool of_operators = !event.actor().empty();
  const std::string all = EventsKey(event.job(), of_operators);
  // Events become visible in the order of their numbers. A write without an answer may have
  // happened, so its number is not given again.
  const std::lock_guard lock(appending_);
  const int64_t sequence = ++newest_event_;
  event.set_sequence(static_cast<uint64_t>(sequence));
  event.set_unix_micros(absl::ToUnixMicros(time));
  return rows_->Write([&](const KeyReader& reader) {
    Batch batch{.puts = {{Numbered(all, sequence), sqlite::RowToBytes(RowOf(event))}}};
    Trim(reader, all, 1, KeptEvents(of_operators), &batch);
    return std::vector<Batch>{std::move(batch)};
  });
}

absl::StatusOr<std::vector<v1::JobEvent>> Store::ReadEvents(const std::string& job, int32_t limit,
                                                            int64_t after_sequence) const {
  const bool newest = after_sequence == 0;
  const int64_t most = std::max(limit, 0);
  std::vector<v1::JobEvent> events;
  EPLB_RETURN_IF_ERROR(rows_->Read([&](const KeyReader& reader) {
    for (const bool of_operators : {false, true}) {
      const std::string all = EventsKey(job, of_operators);
      const std::vector<v1::JobEvent> some =
          View(reader, *this)
              .Decoded({.prefix = all,
                        .after = newest ? "" : Numbered(all, after_sequence),
                        .reverse = newest,
                        .limit = most},
                       &EventOf);
      events.insert(events.end(), some.begin(), some.end());
    }
  }));
  std::ranges::sort(events,
                    [](const auto& a, const auto& b) { return a.sequence() > b.sequence(); });
  const int64_t surplus = std::max<int64_t>(std::ssize(events) - most, 0);
  const auto first = events.begin() + (newest ? 0 : surplus);
  return std::vector<v1::JobEvent>(first, first + (std::ssize(events) - surplus));
}

absl::Status Store::WriteWindows(std::span<const StoredWindow> windows) {
  if (!KeepsWindows()) return absl::OkStatus();
  return rows_->Write([&](const KeyReader& reader) {
    Batch batch;
    std::map<std::string, int64_t> added;
    for (const StoredWindow& window : windows) {
      if (!Knows(reader, window.job)) continue;
      batch.puts[Numbered(WindowsKey(window.job), static_cast<int64_t>(window.figures.window()))] =
          sqlite::RowToBytes(RowOf(window));
      ++added[window.job];
    }
    TrimWindows(reader, added, options_.limits, &batch);
    return std::vector<Batch>{std::move(batch)};
  });
}

absl::StatusOr<std::vector<StoredWindow>> Store::ReadWindows() const {
  std::vector<StoredWindow> windows;
  EPLB_RETURN_IF_ERROR(rows_->Read([&](const KeyReader& reader) {
    windows = View(reader, *this).Decoded({.prefix = kWindowKeys}, &WindowOf);
  }));
  std::ranges::sort(windows, [](const auto& a, const auto& b) {
    return a.figures.window() < b.figures.window();
  });
  return windows;
}

absl::StatusOr<std::string> Store::DropDamagedHistory() {
  EPLB_ASSIGN_OR_RETURN(const int64_t schema, ReadNumber(kSchemaKey));
  if (schema > kKeysSchema) return "";  // Load refuses a newer store, which stays as it is
  absl::Status damaged;
  absl::Status loads = rows_->Read([&](const KeyReader& reader) {
    View view(reader, *this);
    for (const std::string& job : NamesBelow(reader, kTypicalLoadKeys)) {
      (void)view.TypicalLoadsOf(job);
    }
    if (!view.damage.empty()) damaged = DataLoss(view.damage.front());
  });
  loads.Update(damaged);
  std::string dropped;
  Batch batch;
  for (const auto& [status, prefix, name] :
       {std::tuple(ReadWindows().status(), kWindowKeys, "the figures of past load windows"),
        std::tuple(loads, kTypicalLoadKeys, "the typical loads of jobs")}) {
    if (status.ok()) continue;
    if (!absl::IsDataLoss(status)) return status;
    batch.deleted_prefixes.emplace_back(prefix);
    absl::StrAppend(&dropped, dropped.empty() ? "" : " and ", name);
  }
  if (dropped.empty()) return dropped;
  EPLB_RETURN_IF_ERROR(
      rows_->Write([&](const KeyReader& /*reader*/) { return std::vector<Batch>{batch}; }));
  return dropped;
}

std::unique_ptr<Store> MakeMemoryStore(StoreLimits limits) {
  return std::make_unique<Store>(std::make_unique<MemoryKeyValues>(),
                                 StoreOptions{.limits = limits});
}

}  // namespace eplb
