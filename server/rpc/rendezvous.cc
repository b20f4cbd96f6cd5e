#include "server/rpc/rendezvous.h"

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "placement/digest.h"
#include "proto/wire/names.h"

namespace eplb {
namespace {

constexpr size_t kMaxNamedRanks = 16;

std::string MissingRanks(int32_t world_size, const std::vector<int32_t>& missing) {
  return absl::StrCat(ListRanks(missing, kMaxNamedRanks), " of ", world_size);
}

absl::Status CheckToken(int32_t number, const std::string& token) {
  if (number < 0) {
    return InvalidInput("key is not the number of an all-gather, expected 0, 1, 2 ..");
  }
  if (token.size() > wire::kMaxNameLength || (number == 0) != token.empty()) {
    return InvalidInput("token has ", token.size(), " characters in all-gather ", number,
                        ", expected none in all-gather 0 and that of its answer later");
  }
  return absl::OkStatus();
}

}  // namespace

std::string Rendezvous::TokenOf(std::string_view launch_id,
                                const std::map<int32_t, uint64_t>& nonces) {
  std::string text(launch_id);
  for (const auto& [rank, nonce] : nonces) absl::StrAppend(&text, "/", rank, ":", nonce);
  return Sha256(text).Hex();
}

void Rendezvous::Make(const Calls& calls) {
  for (const auto& [done, result] : calls) done(result);
}

absl::Status Rendezvous::Check(const Member& member) const {
  if (member.launch_id.empty()) {
    return InvalidInput(
        "launch_id is empty: two runs of a job could meet; set EPLB_LAUNCH_ID, equal on all ranks "
        "of a run and different for each run");
  }
  // They stand in the messages of other ranks.
  EPLB_RETURN_IF_ERROR(wire::CheckPlainName("job", member.job));
  EPLB_RETURN_IF_ERROR(wire::CheckPrintableName("launch_id", member.launch_id));
  EPLB_RETURN_IF_ERROR(CheckToken(member.number, member.token));
  if (member.world_size < 1 || member.world_size > limits_.max_world_size) {
    return InvalidInput("world_size is ", member.world_size, ", expected 1..",
                        limits_.max_world_size);
  }
  if (member.rank < 0 || member.rank >= member.world_size) {
    return InvalidInput("rank is ", member.rank, ", expected 0..", member.world_size - 1);
  }
  for (const std::string* blob : {&member.blob, &member.previous}) {
    if (blob->size() <= kMaxBlobBytes) continue;
    return InvalidInput("blob has ", blob->size(), " bytes, at most ", kMaxBlobBytes);
  }
  return absl::OkStatus();
}

bool Rendezvous::MeetsAnother(const Member& member) const {
  for (auto it = all_gathers_.lower_bound({member.job, member.launch_id, "", 0});
       it != all_gathers_.end() && it->first.job == member.job &&
       it->first.launch_id == member.launch_id;
       ++it) {
    const auto& [key, all_gather] = *it;
    // Two tokens keep two starts apart; all-gather 0 has none yet.
    const bool same_start = !key.token.empty() && key.token == member.token;
    const bool may_meet =
        all_gather.result == nullptr && (key.token.empty() || member.token.empty());
    if (!same_start && !may_meet) continue;
    const auto rank = all_gather.ranks.find(member.rank);
    if (rank != all_gather.ranks.end() && rank->second.nonce != member.nonce) return true;
  }
  return false;
}

bool Rendezvous::HasOpenAllGather(const LaunchKey& run) const {
  for (auto it = all_gathers_.lower_bound({run.first, run.second, "", 0});
       it != all_gathers_.end() && it->first.job == run.first && it->first.launch_id == run.second;
       ++it) {
    if (it->second.result == nullptr) return true;
  }
  return false;
}

absl::Status Rendezvous::TellApart(const Member& member, absl::Time now, Calls* calls) {
  if (const auto refused = refused_tokens_.find(member.token); refused != refused_tokens_.end()) {
    return refused->second;
  }
  const LaunchKey key(member.job, member.launch_id);
  auto run = launches_.find(key);
  if (run == launches_.end() && member.token.empty()) {
    if (launches_.size() >= kMaxAllGathers) {
      return ResourceExhausted(kMaxAllGathers, " runs are starting, retry later");
    }
    run = launches_.emplace(key, Run{}).first;
  }
  // A start that is older than the newest one, or began at an earlier daemon, has a token of its
  // own, which keeps it apart.
  const bool newest =
      run != launches_.end() && (member.token.empty() || member.token == run->second.token);
  if (newest) {
    Run& start = run->second;
    const auto came = start.nonces.find(member.rank);
    const bool another = came != start.nonces.end() && came->second != member.nonce;
    const bool over = now - start.active >= kQuiet && !HasOpenAllGather(key);
    if (member.token.empty() && over && (another || !start.refused.ok())) {
      start = Run{};
    } else if (!start.refused.ok()) {
      return start.refused;
    } else if (another) {
      return EndStart(member, now, calls);
    }
  }
  if (MeetsAnother(member)) return EndStart(member, now, calls);
  if (newest) {
    run->second.active = now;
    run->second.nonces[member.rank] = member.nonce;
  }
  return absl::OkStatus();
}

absl::Status Rendezvous::EndStart(const Member& member, absl::Time now, Calls* calls) {
  absl::Status status =
      FailedPrecondition("two runs share the launch id ", member.launch_id, ": rank ", member.rank,
                         " has two processes, or a run with this id has just ended; give each run "
                         "an EPLB_LAUNCH_ID of its own (torchrun: --rdzv-id)");
  for (auto it = all_gathers_.lower_bound({member.job, member.launch_id, "", 0});
       it != all_gathers_.end() && it->first.job == member.job &&
       it->first.launch_id == member.launch_id;) {
    const auto all_gather = it++;
    RefuseToken(all_gather->first.token, status);
    End(&all_gather->second, status, calls);
    Erase(all_gather);
  }
  Run& run = launches_[{member.job, member.launch_id}];
  RefuseToken(run.token, status);
  RefuseToken(member.token, status);
  run.active = now;
  run.refused = status;
  return status;
}

void Rendezvous::RefuseToken(const std::string& token, const absl::Status& status) {
  if (token.empty() || !refused_tokens_.emplace(token, status).second) return;
  refused_in_order_.push_back(token);
  if (refused_in_order_.size() <= kMaxAllGathers) return;
  refused_tokens_.erase(refused_in_order_.front());
  refused_in_order_.pop_front();
}

absl::Status Rendezvous::Admit(const Member& member, absl::Time now,
                               AllGathers::iterator* all_gather) {
  const Key key{member.job, member.launch_id, member.token, member.number};
  auto found = all_gathers_.find(key);
  if (found != all_gathers_.end() && found->second.result != nullptr) {
    const auto rank = found->second.ranks.find(member.rank);
    const bool again = found->second.world_size == member.world_size &&
                       rank != found->second.ranks.end() && rank->second.nonce == member.nonce;
    if (!again) {  // a new run under the launch id of one that has started
      Erase(found);
      found = all_gathers_.end();
    }
  }
  if (found == all_gathers_.end()) {
    if (all_gathers_.size() >= kMaxAllGathers) {
      return ResourceExhausted(kMaxAllGathers, " all-gathers are open, retry later");
    }
    found = all_gathers_.emplace(key, AllGather{}).first;
    found->second.world_size = member.world_size;
    found->second.began = now;
    found->second.deadline = now + limits_.deadline;
  }
  *all_gather = found;
  if (found->second.world_size != member.world_size) {
    return InvalidInput("rank ", member.rank, " has world_size ", member.world_size,
                        ", the ranks before it have ", found->second.world_size);
  }
  if (found->second.result == nullptr &&
      bytes_ + member.blob.size() + member.previous.size() > limits_.max_bytes) {
    if (found->second.ranks.empty()) Erase(found);
    return ResourceExhausted("the blobs of all all-gathers exceed ", limits_.max_bytes,
                             " bytes, retry later");
  }
  return absl::OkStatus();
}

void Rendezvous::Join(Member member, const void* caller, Done done, absl::Time now) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    AllGathers::iterator all_gather = all_gathers_.end();
    absl::Status status = Check(member);
    if (status.ok()) status = TellApart(member, now, &calls);
    if (status.ok()) status = Admit(member, now, &all_gather);
    if (!status.ok()) {
      calls.emplace_back(std::move(done), status);
    } else if (all_gather->second.result != nullptr) {
      calls.emplace_back(std::move(done), all_gather->second.result);
    } else {
      Wait(std::move(member), caller, std::move(done), now, all_gather, &calls);
    }
  }
  Make(calls);
}

void Rendezvous::Wait(Member member, const void* caller, Done done, absl::Time now,
                      AllGathers::iterator all_gather, Calls* calls) {
  AllGather& joined = all_gather->second;
  Waiting& waiting = joined.ranks[member.rank];
  if (waiting.caller != nullptr) {
    callers_.erase(waiting.caller);
    calls->emplace_back(std::move(waiting.done),
                        Aborted("rank ", member.rank, " called again, this call is replaced"));
  }
  const size_t bytes = member.blob.size() + member.previous.size();
  joined.bytes += bytes - waiting.bytes();
  bytes_ += bytes - waiting.bytes();
  callers_[caller] = {all_gather->first, member.rank};
  waiting = {.nonce = member.nonce,
             .caller = caller,
             .done = std::move(done),
             .blob = std::move(member.blob),
             .previous = std::move(member.previous)};
  joined.deadline = std::min(joined.deadline, now + member.patience);
  const Key key = all_gather->first;
  if (std::ssize(joined.ranks) < joined.world_size) return CompleteNeighbours(key, calls);
  if (key.number == 0) joined.settled = std::min(joined.settled, now + limits_.settle);
  if (key.number > 0 || joined.settled <= now) Complete(all_gather, calls);
}

void Rendezvous::CompleteNeighbours(const Key& joined, Calls* calls) {
  std::vector<Key> before;
  std::vector<Key> behind;
  for (auto it = all_gathers_.lower_bound({joined.job, joined.launch_id, "", 0});
       it != all_gathers_.end() && it->first.job == joined.job &&
       it->first.launch_id == joined.launch_id;
       ++it) {
    const Key& key = it->first;
    // AllGather 0 has no token yet.
    const bool may_follow = joined.number == 0 || key.token == joined.token;
    const bool may_precede = key.number == 0 || key.token == joined.token;
    if (may_follow && key.number == joined.number + 1) behind.push_back(key);
    if (may_precede && key.number == joined.number - 1) before.push_back(key);
  }
  // Completing one may end and erase others.
  const auto complete = [&](const Key& all_gather, const Key& next) {
    const auto found = all_gathers_.find(all_gather);
    const auto next_found = all_gathers_.find(next);
    if (found == all_gathers_.end() || next_found == all_gathers_.end()) return;
    CompleteFrom(found, next_found, calls);
  };
  for (const Key& next : behind) complete(joined, next);
  for (const Key& all_gather : before) complete(all_gather, joined);
}

void Rendezvous::CompleteFrom(AllGathers::iterator all_gather, AllGathers::const_iterator next,
                              Calls* calls) {
  AllGather& open = all_gather->second;
  const AllGather& later = next->second;
  if (open.result != nullptr || open.world_size != later.world_size) return;
  if (std::ssize(open.ranks) + std::ssize(later.ranks) < open.world_size) return;
  std::map<int32_t, uint64_t> nonces;
  for (const auto& [rank, waiting] : open.ranks) nonces[rank] = waiting.nonce;
  for (const auto& [rank, waiting] : later.ranks) nonces.emplace(rank, waiting.nonce);
  if (std::ssize(nonces) != open.world_size) return;
  if (TokenOf(all_gather->first.launch_id, nonces) != next->first.token) return;
  for (const auto& [rank, waiting] : later.ranks) {
    if (open.ranks.contains(rank)) continue;
    open.bytes += waiting.previous.size();
    bytes_ += waiting.previous.size();
    open.ranks[rank] = {.nonce = waiting.nonce, .blob = waiting.previous};
  }
  Complete(all_gather, calls);
}

void Rendezvous::Complete(AllGathers::iterator all_gather, Calls* calls) {
  const Key& key = all_gather->first;
  AllGather& complete = all_gather->second;
  std::map<int32_t, uint64_t> nonces;
  for (const auto& [rank, waiting] : complete.ranks) nonces[rank] = waiting.nonce;
  auto answer = std::make_shared<Answer>();
  answer->token = TokenOf(key.launch_id, nonces);
  if (key.number > 0 && key.token != answer->token) {
    const absl::Status status = FailedPrecondition(
        "the processes of all-gather ", key.number, " of run ", key.launch_id,
        " are not those that began the start; give each run its own EPLB_LAUNCH_ID");
    RefuseToken(key.token, status);
    End(&complete, status, calls);
    return Erase(all_gather);
  }
  if (key.number == 0) launches_[{key.job, key.launch_id}].token = answer->token;
  size_t forgotten = 0;
  for (auto& [rank, waiting] : complete.ranks) {
    answer->blobs.push_back(std::move(waiting.blob));
    forgotten += waiting.previous.size();
    waiting.blob.clear();
    waiting.previous.clear();
  }
  complete.bytes -= forgotten;
  bytes_ -= forgotten;
  complete.result = std::move(answer);
  End(&complete, absl::OkStatus(), calls);
}

bool Rendezvous::Leave(const void* caller) {
  const std::lock_guard lock(mutex_);
  const auto found = callers_.find(caller);
  if (found == callers_.end()) return false;
  const auto all_gather = all_gathers_.find(found->second.first);
  const auto rank = all_gather->second.ranks.find(found->second.second);
  all_gather->second.bytes -= rank->second.bytes();
  bytes_ -= rank->second.bytes();
  all_gather->second.ranks.erase(rank);
  all_gather->second.settled = absl::InfiniteFuture();  // from the moment that all are there again
  callers_.erase(found);
  if (all_gather->second.ranks.empty()) all_gathers_.erase(all_gather);
  return true;
}

void Rendezvous::Expire(absl::Time now) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    for (auto it = all_gathers_.begin(); it != all_gathers_.end();) {
      const auto current = it++;
      AllGather& all_gather = current->second;
      const bool complete = std::ssize(all_gather.ranks) == all_gather.world_size;
      if (all_gather.result == nullptr && complete &&
          now >= std::min(all_gather.settled, all_gather.deadline)) {
        Complete(current, &calls);
        continue;
      }
      if (now < all_gather.deadline) continue;
      std::vector<int32_t> missing;
      for (int32_t rank = 0; rank < all_gather.world_size; ++rank) {
        if (!all_gather.ranks.contains(rank)) missing.push_back(rank);
      }
      End(&all_gather,
          DeadlineExceeded(
              MissingRanks(all_gather.world_size, missing), " did not call all-gather ",
              current->first.number, " of job \"", current->first.job, "\", run \"",
              current->first.launch_id, "\", within ",
              absl::FormatDuration(all_gather.deadline - all_gather.began),
              "; ranks meet under one launch id (EPLB_LAUNCH_ID, else the launcher's)"),
          &calls);
      Erase(current);
    }
    std::erase_if(launches_, [&](const auto& run) {
      return now - run.second.active >= kQuiet && !HasOpenAllGather(run.first);
    });
  }
  Make(calls);
}

void Rendezvous::FailAll(const absl::Status& status) {
  Calls calls;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, all_gather] : all_gathers_) End(&all_gather, status, &calls);
    all_gathers_.clear();
    launches_.clear();
    bytes_ = 0;
  }
  Make(calls);
}

// status: OK for those of a complete all-gather, who get its result.
void Rendezvous::End(AllGather* all_gather, const absl::Status& status, Calls* calls) {
  for (auto& [rank, waiting] : all_gather->ranks) {
    if (waiting.caller == nullptr) continue;
    callers_.erase(waiting.caller);
    waiting.caller = nullptr;
    Done done = std::exchange(waiting.done, nullptr);
    if (status.ok()) {
      calls->emplace_back(std::move(done), all_gather->result);
    } else {
      calls->emplace_back(std::move(done), status);
    }
  }
}

void Rendezvous::Erase(AllGathers::iterator all_gather) {
  bytes_ -= all_gather->second.bytes;
  all_gathers_.erase(all_gather);
}

}  // namespace eplb
