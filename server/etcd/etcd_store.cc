#include "server/etcd/etcd_store.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "placement/digest.h"
#include "server/store/value_rows.h"

namespace eplb::etcd {
namespace {

constexpr int64_t kPage = 32;           // rows of one read
constexpr size_t kMaxOperations = 100;  // of one transaction; etcd takes 128
constexpr int64_t kMaxTrimmed = 32;     // rows that one write removes beside its own
constexpr int kMaxAttempts = 4;         // of one write
constexpr absl::Duration kMostOfAWrite = absl::Seconds(3);
// After a write that etcd did not answer the next ones fail at once for so long, so that a decision
// of many effects does not hold up the core's thread for each.
constexpr absl::Duration kPauseAfterFailure = absl::Milliseconds(500);

constexpr char kTerm[] = "term";
constexpr char kSerial[] = "serial";

constexpr size_t kDigits = 16;  // of a number in a key: numbers sort as they count
std::string Numbered(std::string_view prefix, int64_t number) {
  return absl::StrCat(std::string(prefix), absl::StrFormat("%016x", number));
}

std::string JobKey(const std::string& job, std::string_view rest) {
  return absl::StrCat("job/", job, "/", std::string(rest));
}
std::string EventsKey(const std::string& job, bool of_operators) {
  return absl::StrCat("event/", job, of_operators ? "/o/" : "/d/");
}

// The job that a key "job/JOB/.." or "event/JOB/.." is of.
std::string JobOfKey(const std::string& key) {
  const std::vector<std::string> parts = absl::StrSplit(key, '/');
  return parts.size() > 1 ? parts[1] : "";
}

using Rows = std::map<std::string, std::string>;  // key below the prefix, value

// The rows whose keys begin with `prefix`, in order.
std::pair<Rows::const_iterator, Rows::const_iterator> With(const Rows& rows,
                                                           const std::string& prefix) {
  return {rows.lower_bound(prefix), rows.lower_bound(EndOfPrefix(prefix))};
}

// One write: what it puts and what it deletes.
struct Batch {
  Rows puts = {};
  std::vector<std::string> deletes = {};
};

void Apply(const Batch& batch, Rows* rows) {
  for (const auto& [key, value] : batch.puts) rows->insert_or_assign(key, value);
  for (const std::string& key : batch.deletes) rows->erase(key);
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

std::string BytesOf(const Digest& digest) { return {digest.bytes.begin(), digest.bytes.end()}; }

class EtcdStore : public Store {
 public:
  explicit EtcdStore(EtcdStoreOptions options) : options_(std::move(options)) {}

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
  absl::StatusOr<std::vector<StoredEvent>> ReadEventsOfAll(std::optional<int64_t> after_sequence,
                                                           int32_t limit) override;
  absl::Status CheckFile() override { return options_.may_write(); }
  void Close() override;

 private:
  // All that follow: REQUIRES mutex_.
  absl::Status CheckOpen() const {
    return open_ ? absl::OkStatus() : absl::UnavailableError("the store is closed");
  }
  std::string Where(const std::string& key) const {
    return absl::StrCat("etcd key ", options_.prefix, "/", key);
  }
  absl::StatusOr<sqlite::Row> RowAt(Rows::const_iterator at) const {
    return sqlite::RowFromBytes(at->second, Where(at->first));
  }
  absl::Status ReadRows();
  absl::StatusOr<core::StoredJob> ReadJob(Rows::const_iterator record) const;
  std::vector<KeptPlacement> PlacementsOf(const std::string& job) const;
  absl::StatusOr<std::vector<StoredEvent>> EventsBelow(const std::string& prefix) const;
  std::vector<Batch> BatchesOf(const core::StoredJob& job) const;
  void AddPlacement(const core::StoredJob& job, std::vector<Batch>* before, Batch* batch) const;
  void TrimOrphans(bool of_operators, int32_t keep, const std::string& forgotten,
                   Batch* batch) const;
  bool Knows(const std::string& job) const { return rows_.contains(JobKey(job, "record")); }

  // One after the other. make: what to write from the rows as they are known; asked again when a
  // write that was not answered turns out to have happened.
  absl::Status WriteMade(const std::function<std::vector<Batch>()>& make);
  absl::Status Write(const Batch& batch);
  absl::Status WriteInParts(const Batch& batch);
  absl::StatusOr<bool> Attempt(const Batch& batch, absl::Time deadline);
  absl::StatusOr<bool> AttemptAll(const std::function<std::vector<Batch>()>& make,
                                  absl::Time deadline);
  absl::Status Settle(absl::Time deadline);
  absl::Status OtherLeads(const std::string& address);
  pb::TxnRequest TransactionOf(const Batch& batch) const;
  std::string Absolute(const std::string& key) const {
    return absl::StrCat(options_.prefix, "/", key);
  }

  const EtcdStoreOptions options_;
  std::mutex mutex_;  // guards what follows
  bool open_ = true;
  Rows rows_;                    // what etcd holds below the prefix, but for the leader's key
  int64_t sequence_ = 0;         // of the newest event
  int64_t serial_revision_ = 0;  // of the key `serial`; 0: it is not there
  bool unsure_ = false;          // a write was not answered: it may have happened, or may yet
  absl::Time refuse_until_ = absl::InfinitePast();
  absl::Status refused_;
};

absl::Status EtcdStore::Load() {
  const std::lock_guard lock(mutex_);
  return ReadRows();
}

absl::Status EtcdStore::ReadRows() {
  Rows rows;
  int64_t serial_revision = 0;
  int64_t sequence = 0;
  const std::string first = options_.prefix + "/";
  pb::RangeRequest request;
  request.set_key(first);
  request.set_range_end(EndOfPrefix(first));
  request.set_limit(kPage);
  for (bool more = true; more;) {
    EPLB_ASSIGN_OR_RETURN(const pb::RangeResponse page,
                          options_.client->Range(request, options_.write_until()));
    for (const pb::KeyValue& pair : page.kvs()) {
      const std::string key = pair.key().substr(first.size());
      if (pair.key() == options_.fence.key || key.starts_with("knock/")) continue;
      if (key == kSerial) serial_revision = pair.mod_revision();
      rows.emplace(key, pair.value());
    }
    if (!page.kvs().empty()) request.set_key(page.kvs(page.kvs_size() - 1).key() + '\0');
    request.set_revision(page.header().revision());  // all pages are of one moment
    more = page.more();
  }
  for (auto [row, last] = With(rows, "event/"); row != last; ++row) {
    EPLB_ASSIGN_OR_RETURN(const sqlite::Row cells, RowAt(row));
    EPLB_ASSIGN_OR_RETURN(const StoredEvent event, EventOf(cells));
    sequence = std::max(sequence, event.sequence);
  }
  rows_ = std::move(rows);
  serial_revision_ = serial_revision;
  sequence_ = sequence;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> EtcdStore::ReadTerm() {
  const std::lock_guard lock(mutex_);
  EPLB_RETURN_IF_ERROR(CheckOpen());
  int64_t term = 0;
  if (const auto row = rows_.find(kTerm); row != rows_.end()) {
    if (!absl::SimpleAtoi(row->second, &term) || term < 0) {
      return absl::DataLossError(absl::StrCat(Where(kTerm), " is no term"));
    }
  }
  return std::max(term, options_.least_term);
}

absl::Status EtcdStore::WriteTerm(int64_t term) {
  const std::lock_guard lock(mutex_);
  EPLB_RETURN_IF_ERROR(CheckOpen());
  int64_t known = 0;
  if (const auto row = rows_.find(kTerm); row != rows_.end()) {
    (void)absl::SimpleAtoi(row->second, &known);
  }
  return Write({.puts = {{kTerm, absl::StrCat(std::max(term, known))}}});
}

std::vector<KeptPlacement> EtcdStore::PlacementsOf(const std::string& job) const {
  std::vector<KeptPlacement> placements;
  for (auto [row, last] = With(rows_, JobKey(job, "placement/")); row != last;) {
    const std::string key = row->first.substr(0, row->first.rfind('/') + 1);
    std::string bytes;
    for (; row != last && row->first.starts_with(key); ++row) bytes += row->second;
    absl::StatusOr<sqlite::Row> cells = sqlite::RowFromBytes(bytes, Where(key));
    // Else a write that ended between its parts; the record never named it.
    if (cells.ok() && IsOfPlacement(*cells)) {
      placements.push_back({.key = key, .row = *std::move(cells)});
    }
  }
  return placements;
}

absl::StatusOr<core::StoredJob> EtcdStore::ReadJob(Rows::const_iterator record) const {
  EPLB_ASSIGN_OR_RETURN(const sqlite::Row cells, RowAt(record));
  EPLB_ASSIGN_OR_RETURN(JobRow row, JobOf(cells));
  core::StoredJob job{.job = row.job,
                      .version = row.version,
                      .next_version = row.next_version,
                      .placement = std::nullopt,
                      .memory = std::move(row.memory),
                      .end = std::move(row.end)};
  for (const KeptPlacement& one : PlacementsOf(job.job)) {
    core::RanVersion ran{.version = one.version()};
    if (one.digest().size() != ran.digest.bytes.size()) continue;
    std::copy(one.digest().begin(), one.digest().end(), ran.digest.bytes.begin());
    job.history.push_back(ran);
    if (one.version() != row.version || one.digest() != row.digest) continue;
    EPLB_ASSIGN_OR_RETURN(PlacementRow placement, PlacementRowOf(one.row, Where(one.key)));
    job.placement = std::move(placement.placement);
  }
  if (!row.digest.empty() && !job.placement) {
    return absl::DataLossError(absl::StrCat(Where(record->first), ": its placement, version ",
                                            row.version, ", is missing or damaged"));
  }
  for (auto [at, last] = With(rows_, JobKey(job.job, "request/")); at != last; ++at) {
    EPLB_ASSIGN_OR_RETURN(const sqlite::Row request, RowAt(at));
    EPLB_ASSIGN_OR_RETURN(core::DoneRequest done, RequestOf(request));
    job.requests.push_back(std::move(done));
  }
  for (auto [at, last] = With(rows_, JobKey(job.job, "plan/")); at != last; ++at) {
    EPLB_ASSIGN_OR_RETURN(const sqlite::Row plan, RowAt(at));
    EPLB_ASSIGN_OR_RETURN(core::Plan decoded, PlanOf(plan));
    job.plans.push_back(std::move(decoded));
  }
  return job;
}

absl::StatusOr<std::vector<core::StoredJob>> EtcdStore::ReadJobs() {
  const std::lock_guard lock(mutex_);
  EPLB_RETURN_IF_ERROR(CheckOpen());
  std::vector<core::StoredJob> jobs;
  for (auto [row, last] = With(rows_, "job/"); row != last; ++row) {
    if (!row->first.ends_with("/record")) continue;
    EPLB_ASSIGN_OR_RETURN(core::StoredJob job, ReadJob(row));
    jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a.job < b.job; });
  return jobs;
}

// Adds the placement unless it is kept. The one in force stays, however old.
void EtcdStore::AddPlacement(const core::StoredJob& job, std::vector<Batch>* before,
                             Batch* batch) const {
  const std::vector<KeptPlacement> kept = PlacementsOf(job.job);
  const std::string digest = BytesOf(DigestOf(*job.placement));
  const bool is_known = std::any_of(kept.begin(), kept.end(), [&](const KeptPlacement& one) {
    return one.version() == job.version && one.digest() == digest;
  });
  if (is_known) return;
  const std::string all = JobKey(job.job, "placement/");
  const auto [first, last] = With(rows_, all);
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
    const std::string key = row->first.substr(0, row->first.rfind('/') + 1);
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

// The last one has the record.
std::vector<Batch> EtcdStore::BatchesOf(const core::StoredJob& job) const {
  std::vector<Batch> batches;
  Batch batch;
  if (job.placement) AddPlacement(job, &batches, &batch);
  batch.puts[JobKey(job.job, "record")] = sqlite::RowToBytes(RowOf(job));
  if (job.done) {
    const std::string all = JobKey(job.job, "request/");
    const auto [first, last] = With(rows_, all);
    int64_t newest = 0;
    if (first != last) {
      (void)absl::SimpleHexAtoi(std::prev(last)->first.substr(all.size()), &newest);
    }
    batch.puts[Numbered(all, newest + 1)] = sqlite::RowToBytes(RowOf(job.job, *job.done));
    Trim(rows_, all, 1, options_.limits.max_requests, &batch);
  }
  batches.push_back(std::move(batch));
  return batches;
}

absl::Status EtcdStore::WriteJob(const core::StoredJob& job) {
  const std::lock_guard lock(mutex_);
  EPLB_RETURN_IF_ERROR(CheckOpen());
  return WriteMade([&] { return BatchesOf(job); });
}

absl::Status EtcdStore::WritePlan(const std::string& job, const core::Plan& plan) {
  const std::lock_guard lock(mutex_);
  EPLB_RETURN_IF_ERROR(CheckOpen());
  if (!Knows(job)) return absl::OkStatus();  // forgotten meanwhile
  const std::string all = JobKey(job, "plan/");
  const std::string key = Numbered(all, plan.plan);
  Batch batch{.puts = {{key, sqlite::RowToBytes(RowOf(job, plan))}}};
  Trim(rows_, all, rows_.contains(key) ? 0 : 1, options_.limits.max_plans, &batch);
  return Write(batch);
}

// The oldest events of jobs that are not known any more go first.
void EtcdStore::TrimOrphans(bool of_operators, int32_t keep, const std::string& forgotten,
                            Batch* batch) const {
  std::vector<std::pair<std::string, std::string>> found;  // sequence as text, key
  for (auto [row, last] = With(rows_, "event/"); row != last; ++row) {
    const std::string job = JobOfKey(row->first);
    const std::string own = EventsKey(job, of_operators);
    if (!row->first.starts_with(own) || (Knows(job) && job != forgotten)) continue;
    found.emplace_back(row->first.substr(own.size()), row->first);
  }
  std::sort(found.begin(), found.end());
  const auto surplus = std::max<int64_t>(0, std::ssize(found) - keep);
  for (int64_t i = 0; i < surplus; ++i) {
    batch->deletes.push_back(found[static_cast<size_t>(i)].second);
  }
}

absl::Status EtcdStore::ForgetJob(const std::string& job) {
  const std::lock_guard lock(mutex_);
  EPLB_RETURN_IF_ERROR(CheckOpen());
  Batch batch;
  // The record first: without it the other rows are nobody's.
  if (Knows(job)) batch.deletes.push_back(JobKey(job, "record"));
  for (auto [row, last] = With(rows_, JobKey(job, "")); row != last; ++row) {
    if (!row->first.ends_with("/record")) batch.deletes.push_back(row->first);
  }
  TrimOrphans(false, options_.limits.max_events, job, &batch);
  TrimOrphans(true, options_.limits.max_operator_events, job, &batch);
  return WriteInParts(batch);
}

absl::StatusOr<Placement> EtcdStore::ReadPlacement(const std::string& job, int64_t version) {
  const std::lock_guard lock(mutex_);
  EPLB_RETURN_IF_ERROR(CheckOpen());
  for (const KeptPlacement& one : PlacementsOf(job)) {
    if (one.version() != version) continue;
    EPLB_ASSIGN_OR_RETURN(PlacementRow placement, PlacementRowOf(one.row, Where(one.key)));
    return std::move(placement.placement);
  }
  return absl::NotFoundError(absl::StrCat("version ", version, " of job ", job, " is not kept"));
}

absl::Status EtcdStore::AppendEvent(absl::Time time, const core::JobEvent& event) {
  const std::lock_guard lock(mutex_);
  EPLB_RETURN_IF_ERROR(CheckOpen());
  const bool of_operators = !event.actor.empty();
  const std::string all = EventsKey(event.job, of_operators);
  EPLB_RETURN_IF_ERROR(WriteMade([&] {
    const StoredEvent stored{.sequence = sequence_ + 1, .time = time, .event = event};
    Batch batch{.puts = {{Numbered(all, stored.sequence), sqlite::RowToBytes(RowOf(stored))}}};
    Trim(rows_, all, 1,
         of_operators ? options_.limits.max_operator_events : options_.limits.max_events, &batch);
    return std::vector<Batch>{std::move(batch)};
  }));
  ++sequence_;
  return absl::OkStatus();
}

// By sequence.
absl::StatusOr<std::vector<StoredEvent>> EtcdStore::EventsBelow(const std::string& prefix) const {
  std::vector<StoredEvent> events;
  for (auto [row, last] = With(rows_, prefix); row != last; ++row) {
    EPLB_ASSIGN_OR_RETURN(const sqlite::Row cells, RowAt(row));
    EPLB_ASSIGN_OR_RETURN(StoredEvent event, EventOf(cells));
    events.push_back(std::move(event));
  }
  std::sort(events.begin(), events.end(),
            [](const auto& a, const auto& b) { return a.sequence < b.sequence; });
  return events;
}

absl::StatusOr<std::vector<StoredEvent>> EtcdStore::ReadEvents(const std::string& job,
                                                               int32_t limit,
                                                               int64_t after_sequence) {
  const std::lock_guard lock(mutex_);
  EPLB_RETURN_IF_ERROR(CheckOpen());
  EPLB_ASSIGN_OR_RETURN(std::vector<StoredEvent> events,
                        EventsBelow(absl::StrCat("event/", job, "/")));
  std::erase_if(events, [&](const auto& one) { return one.sequence <= after_sequence; });
  const auto kept = std::min<int64_t>(std::ssize(events), std::max(limit, 0));
  // Of those after a point the oldest, so that who reads on misses none.
  const auto first = after_sequence == 0 ? events.end() - kept : events.begin();
  std::vector<StoredEvent> result(first, first + kept);
  std::reverse(result.begin(), result.end());
  return result;
}

absl::StatusOr<std::vector<StoredEvent>> EtcdStore::ReadEventsOfAll(
    std::optional<int64_t> after_sequence, int32_t limit) {
  const std::lock_guard lock(mutex_);
  EPLB_RETURN_IF_ERROR(CheckOpen());
  EPLB_ASSIGN_OR_RETURN(std::vector<StoredEvent> events, EventsBelow("event/"));
  std::erase_if(events,
                [&](const auto& one) { return one.sequence <= after_sequence.value_or(0); });
  const auto kept = std::min<int64_t>(std::ssize(events), std::max(limit, 0));
  const auto first = after_sequence ? events.begin() : events.end() - kept;
  return std::vector<StoredEvent>(first, first + kept);
}

void EtcdStore::Close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
}

pb::TxnRequest EtcdStore::TransactionOf(const Batch& batch) const {
  pb::TxnRequest request;
  pb::Compare& leads = *request.add_compare();
  leads.set_target(pb::Compare::CREATE);
  leads.set_key(options_.fence.key);
  leads.set_create_revision(options_.fence.create_revision);
  pb::Compare& newest = *request.add_compare();
  newest.set_target(pb::Compare::MOD);
  newest.set_key(Absolute(kSerial));
  newest.set_mod_revision(serial_revision_);
  for (const auto& [key, value] : batch.puts) {
    pb::PutRequest& put = *request.add_success()->mutable_request_put();
    put.set_key(Absolute(key));
    put.set_value(value);
  }
  pb::PutRequest& serial = *request.add_success()->mutable_request_put();
  serial.set_key(Absolute(kSerial));
  serial.set_value(absl::StrCat(options_.fence.create_revision));
  for (const std::string& key : batch.deletes) {
    request.add_success()->mutable_request_delete_range()->set_key(Absolute(key));
  }
  request.add_failure()->mutable_request_range()->set_key(options_.fence.key);
  return request;
}

absl::Status EtcdStore::OtherLeads(const std::string& address) {
  const std::string why = address.empty()
                              ? std::string("etcd refused a write: nobody leads any more")
                              : absl::StrCat("etcd refused a write: ", address, " leads");
  options_.lost(why);
  return absl::FailedPreconditionError(why);
}

// Learns what etcd holds when a write happened that was not answered. One that did not happen never
// will once a later one has, for both compare the same revision of the serial.
absl::Status EtcdStore::Settle(absl::Time deadline) {
  pb::RangeRequest request;
  request.set_key(Absolute(kSerial));
  EPLB_ASSIGN_OR_RETURN(const pb::RangeResponse found, options_.client->Range(request, deadline));
  const int64_t revision = found.kvs().empty() ? 0 : found.kvs(0).mod_revision();
  return revision == serial_revision_ ? absl::OkStatus() : ReadRows();
}

// False when a write of ours came between that was not answered, and is known now.
absl::StatusOr<bool> EtcdStore::Attempt(const Batch& batch, absl::Time deadline) {
  const absl::StatusOr<pb::TxnResponse> response =
      options_.client->Txn(TransactionOf(batch), deadline);
  if (!response.ok()) {
    unsure_ = true;
    return response.status();
  }
  if (response->succeeded()) {
    Apply(batch, &rows_);
    serial_revision_ = response->header().revision();
    unsure_ = false;
    return true;
  }
  const pb::RangeResponse& leader = response->responses(0).response_range();
  if (leader.kvs().empty()) return OtherLeads("");
  if (leader.kvs(0).create_revision() != options_.fence.create_revision) {
    return OtherLeads(leader.kvs(0).value());
  }
  EPLB_RETURN_IF_ERROR(Settle(deadline));
  return false;
}

absl::StatusOr<bool> EtcdStore::AttemptAll(const std::function<std::vector<Batch>()>& make,
                                           absl::Time deadline) {
  if (unsure_) EPLB_RETURN_IF_ERROR(Settle(deadline));
  for (const Batch& batch : make()) {
    EPLB_ASSIGN_OR_RETURN(const bool done, Attempt(batch, deadline));
    if (!done) return false;
  }
  return true;
}

absl::Status EtcdStore::Write(const Batch& batch) {
  return WriteMade([&batch] { return std::vector<Batch>{batch}; });
}

absl::Status EtcdStore::WriteMade(const std::function<std::vector<Batch>()>& make) {
  EPLB_RETURN_IF_ERROR(options_.may_write());
  const absl::Time begin = MonotonicNow();
  if (begin < refuse_until_) return refused_;
  const absl::Time deadline = std::min(begin + kMostOfAWrite, options_.write_until());
  absl::Status failure = absl::UnavailableError("other writes came between again and again");
  for (int attempt = 0; attempt < kMaxAttempts && MonotonicNow() < deadline; ++attempt) {
    const absl::StatusOr<bool> done = AttemptAll(make, deadline);
    if (done.ok() && *done) return absl::OkStatus();
    if (done.ok()) continue;
    failure = done.status();
    if (!absl::IsUnavailable(failure) && !absl::IsDeadlineExceeded(failure)) break;
  }
  refuse_until_ = MonotonicNow() + kPauseAfterFailure;
  refused_ = absl::UnavailableError(failure.message());
  return refused_;
}

// For deletions alone, whose order is that of the batch.
absl::Status EtcdStore::WriteInParts(const Batch& batch) {
  for (size_t begin = 0; begin < batch.deletes.size() || begin == 0; begin += kMaxOperations) {
    const size_t end = std::min(begin + kMaxOperations, batch.deletes.size());
    Batch part;
    part.deletes.assign(batch.deletes.begin() + static_cast<ptrdiff_t>(begin),
                        batch.deletes.begin() + static_cast<ptrdiff_t>(end));
    EPLB_RETURN_IF_ERROR(Write(part));
  }
  return absl::OkStatus();
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

absl::StatusOr<std::unique_ptr<Store>> OpenEtcdStore(EtcdStoreOptions options) {
  auto store = std::make_unique<EtcdStore>(std::move(options));
  EPLB_RETURN_IF_ERROR(store->Load());
  return store;
}

}  // namespace eplb::etcd
