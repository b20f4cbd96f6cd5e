// libeplb: what an MoE trainer embeds on every rank.
//
//   auto client = eplb::Client::Connect(options, all_gather);  // collective, before weights exist
//   ... allocate local slots as client->placement() says ...
//   client->RegisterExperts(tensors);                        // collective
//   for (step = 0; ...; ++step) {
//     forward, backward, optimizer
//     client->Record(layer, counts);                         // of each MoE layer
//     client->StepBoundary(step, stream);                    // may migrate and switch
//   }
//   client->Close("finished");
//
// docs/counting-on-the-gpu.md shows how routers on a GPU count and route.
#ifndef EPLB_CLIENT_CLIENT_H_
#define EPLB_CLIENT_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eplb {

// Everybody's bytes in rank order; see client/rows/control/control_channel.h.
using AllGather = std::function<absl::StatusOr<std::vector<std::string>>(std::string_view bytes)>;

// kWeight: in every replica. kState: where StatePlacement says. kDerived: computed from the others;
// not moved, but rebuilt.
enum class Role { kWeight, kState, kDerived };
enum class StatePlacement { kWithPrimary, kEveryReplica };

// Computes a derived tensor again for the local slots, rising, that received rows. Called once per
// layer and switch on the training thread, inside StepBoundary, CheckExperts and Carry: the rows
// are in place (for work on its stream) and placement() is where they are. An error ends the run
// with DataLoss.
using Rebuild = std::function<absl::Status(int32_t layer, std::span<const int32_t> local_slots)>;

// One tensor of one layer: local slot i is the row_bytes bytes at base + i * row_stride. A derived
// one is its name, its layer and `rebuild`; all else stays empty. docs/registering-tensors.md says
// which tensors a trainer registers.
struct ExpertTensorView {
  std::string name;
  int32_t layer = 0;
  Role role = Role::kWeight;
  void* base = nullptr;
  int32_t num_rows = 0;
  int64_t row_bytes = 0;
  int64_t row_stride = 0;
  Rebuild rebuild = nullptr;  // of a derived tensor
};

// A digest of what the expert in a local slot computes for a fixed input, and of all else that must
// move with it. For an expert it gives the same in every slot and on every rank of the EP group.
using ExpertProbe = std::function<absl::StatusOr<uint64_t>(int32_t layer, int32_t local_slot)>;

// kBfloat16 and kFloat16 are added as floats, and each addition is rounded once, to nearest, ties
// to even: with r replicas a sum is rounded r - 1 times, in the order of replicas.
enum class GradientType { kFloat32, kFloat64, kBfloat16, kFloat16 };

// What belongs to the local slots of a layer besides the registered tensors, such as gradients:
// local slot i is the row_bytes bytes at base + i * row_stride, in the same memory as the
// registered tensors.
struct ReplicaRows {
  std::string name;  // for messages
  int32_t layer = 0;
  GradientType type = GradientType::kFloat32;  // BroadcastWeights does not look at it
  void* base = nullptr;
  int32_t num_rows = 0;
  int64_t row_bytes = 0;
  int64_t row_stride = 0;
};

// PEM files for a daemon that speaks TLS: all three, or none for plaintext. What is empty comes
// from EPLB_TLS_CA, EPLB_TLS_CERT, EPLB_TLS_KEY and EPLB_TLS_SERVER_NAME. Read at each connection.
struct DaemonTls {
  std::string ca;           // who must have signed the daemon's certificate
  std::string cert;         // this rank's chain
  std::string key;          // without a password
  std::string server_name;  // in the daemon's certificate; empty: the endpoint's host
};

// Of our own NCCL communicators, where rows go by NCCL; docs/nccl-settings.md says
// why these. All but traffic_class are equal on all ranks.
struct NcclTuning {
  int32_t max_ctas = 16;              // 1..64
  int32_t channels_per_net_peer = 8;  // 1..64
  int32_t traffic_class = -1;         // -1: EPLB_NCCL_TRAFFIC_CLASS, else NCCL's own
  // Of a send; a multiple of 64, 64 KiB..1 GiB. 0: 16 MiB, and on one node what fills 8 channels.
  int64_t piece_bytes = 0;
  // 0..4096; the largest EP group whose pairs all connect at the start.
  int32_t warm_up_ranks = 64;
};

// What ClientOptions::initial_placement may be beside a path.
inline constexpr std::string_view kStaticPlacement = "static";

// Values of ClientOptions::transport.
inline constexpr const char* kTransportNames[] = {"auto", "host", "peer", "nccl", "peer+nccl"};

struct ClientOptions {
  std::string job = "default";  // 1..128 of [A-Za-z0-9._-]
  // What this run is called, 1..111 of [A-Za-z0-9._-], equal on all ranks. Empty:
  // EPLB_LAUNCH_ID, or torchrun's run or SLURM's job and step, each with its count of restarts; or
  // nothing. Rank 0 adds what it draws, so that Client::run_id() is that of no other run.
  std::string run_id;
  // Replaces a run of this job although its steps advance; also EPLB_TAKE_OVER=1. Else this one
  // is balanced once the other has ended or stands still. Equal on all ranks.
  bool take_over = false;
  int32_t rank = 0;
  // pipeline_parallel_size * data-parallel copies * num_gpus * expert_tensor_parallel, in the order
  // of Megatron's tp-ep-dp-pp; see docs/registering-tensors.md.
  int32_t world_size = 1;
  int32_t pipeline_parallel_size = 1;  // each registers, moves and counts layers of its own
  int32_t expert_tensor_parallel = 1;  // ranks that share every expert; the first counts for all
  // Of eplbd, HOST:PORT or unix:PATH, or a list of at most 8, "A,B", of daemons that stand in for
  // each other, in the same order on all ranks (docs/endpoints.md). Or where the list is found:
  // env:VARIABLE, file:PATH, which is waited for, or srv:NAME of DNS. Empty: the job runs without
  // one.
  std::string endpoint;
  // Whether Connect fails on all ranks when no daemon answers rank 0; else the job starts without.
  bool require_daemon = false;
  DaemonTls tls;  // of the connections to it
  int32_t num_layers = 0;
  int32_t num_experts = 0;
  int32_t num_slots = 0;
  int32_t num_gpus = 1;
  int32_t num_nodes = 1;
  int32_t num_groups = 1;
  int64_t first_step = 0;     // of the first StepBoundary, e.g. that of a checkpoint
  int32_t vote_every = 8;     // steps, constant in a run, equal on all ranks
  int32_t report_every = 50;  // steps in a load window, until the daemon asks for another length
  // Who reports: "rank", every rank its own counts; "root", rank 0 the sum over ranks, which the
  // job's own collective made.
  std::string reduce = "rank";
  // How the trainer splits an expert's tokens among its replicas: "equal", in equal shares;
  // "batch", exactly, each batch by its own counts, and then RecordSplit tells the daemon what ran.
  std::string split = "equal";
  // Newest steps kept for a daemon that is away; older ones are dropped and counted.
  int32_t report_max_steps = 1000;
  // Staging has room for all slots of so many layers. A boundary that moves fewer experts of each
  // layer switches more of them, as the daemon's setting of this name allows.
  int32_t layers_per_chunk = 4;
  StatePlacement state_placement = StatePlacement::kEveryReplica;
  // Of a job whose registered rows no step changes, such as inference or frozen experts, with
  // weights alone: rows move while the next steps run, and the switch comes at the next vote. Its
  // pause is one read of the rows that were sent, the vote and the commit. Equal on all ranks.
  // docs/transports.md says what it costs and what is checked.
  bool ahead = false;
  // auto, or host, peer (CUDA IPC), nccl, peer+nccl; the last three for tensors in GPU memory.
  // auto: host for tensors in host memory. For GPU memory the first that every rank can use of
  // peer, or peer+nccl if EP groups span hosts, nccl and host. Rank 0 logs why one was skipped.
  std::string transport = "auto";
  NcclTuning nccl;
  std::string bind_address = "127.0.0.1";  // numeric address that other ranks reach this one at
  // kStaticPlacement: expert e in slot e, replicas behind them, also for a job that the daemon
  // knows under another placement. Else the path of a placement file, or of a placements.jsonl
  // (whose last line counts) by that ending, read by rank 0; "./static" is a file of that name.
  // Empty: the daemon's, else static.
  std::string initial_placement;
  // Rank 0 writes placements.jsonl here, anew at each start; empty: not written.
  std::string placements_path;
  // This rank's own log for the validator, appended to; empty: not written.
  std::string history_path;
  absl::Duration start_deadline = absl::Seconds(60);
  absl::Duration vote_deadline = absl::Seconds(600);
  absl::Duration transfer_deadline = absl::Seconds(30);
};

// The placement in force on this rank. The spans stay valid, and keep their addresses, for the life
// of the client; their contents change only inside StepBoundary and CheckExperts, and those of
// row_placement() inside Carry as well.
struct PlacementView {
  int64_t version = 0;
  std::string digest;  // hexadecimal
  int32_t num_layers = 0, num_experts = 0, num_slots = 0;
  int32_t first_local_slot = 0, num_local_slots = 0;  // of this rank's GPU
  std::span<const int32_t> physical_to_logical_map;   // [L, S]
  std::span<const int32_t> logical_replica_count;     // [L, E]
  // [L, E, max_replicas], -1 padded; max_replicas = S - E + 1, the most an expert can ever have.
  std::span<const int32_t> logical_to_physical_map;
  int32_t max_replicas = 0;
};

// The same for kernels: arrays in the memory where the expert tensors lie, whose addresses stay for
// the life of the client, so that a captured graph goes on reading them. They change on the stream
// of StepBoundary and CheckExperts: work that it gets after the call reads the new ones. An
// expert's slots stand in one list behind those of the expert before it, so a table is as long as
// there are slots.
struct DeviceTables {
  int32_t num_layers = 0, num_experts = 0, num_slots = 0;
  const int32_t* physical_to_logical_map = nullptr;  // [L, S], -1 in a slot that is not in use
  const int32_t* logical_replica_count = nullptr;    // [L, E]
  // The slots of expert e of layer l, its primary first, are those of row l of `replicas` from
  // first_replica[l, e] up to before first_replica[l, e + 1].
  const int32_t* replicas = nullptr;       // [L, S]
  const int32_t* first_replica = nullptr;  // [L, E + 1]
  // Where this GPU's tokens go: likewise, but only replicas on this GPU where there are any. Row l
  // of these three is a cuda::RouteTable (cuda/route.h), with which LaunchRoute routes.
  const int32_t* candidates = nullptr;       // [L, S]
  const int32_t* first_candidate = nullptr;  // [L, E + 1]
  // [L, S], 2^32 times the share of candidates up to this one.
  const uint32_t* thresholds = nullptr;
};

// The tokens of one layer of a batch, once per top-k choice, for Client::Split: `totals` or
// `by_gpu`.
struct BatchCounts {
  std::span<const int64_t> totals;  // [E], of all ranks of the EP group
  std::span<const int64_t> by_gpu;  // [num_gpus, E], row by row, of each rank of the EP group
  // With totals, where each rank knows what lower ranks have (an exclusive scan): tokens of the EP
  // group's lower ranks, and of this one, [E] each. Both or none.
  std::span<const int64_t> before;
  std::span<const int64_t> mine;
};

// How Client::Split splits. Equal on all ranks, as the counts are.
struct SplitOptions {
  std::vector<double> gpu_speeds;  // [num_gpus], relative; 0: takes no tokens. Empty: all equal
  // 0..1, the part of the least maximum by which a GPU may be above it, so that fewer tokens leave
  // the slots of equal shares.
  double slack = 0;
};

// How even a split is. A GPU's load is its tokens / its speed.
struct SplitFigures {
  int64_t version = 0;                 // of the placement that was split
  double peak = 0;                     // load of the fullest GPU
  double mean = 0;                     // over the usable GPUs
  std::optional<double> balancedness;  // mean / peak; none without tokens
  double equal_peak = 0;               // what `peak` is if each expert's replicas take equal shares
  // The proof, rising: the experts that only these GPUs hold have too many tokens for a lower peak
  // (with slack: for one lower than the least, which `peak` is above by at most the slack).
  std::vector<int32_t> tight_gpus;
};

struct BoundaryResult {
  bool voted = false;
  bool switched = false;  // a chunk was committed: the next forward runs under `version`
  int64_t version = 0;
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  double pause_seconds = 0;        // time spent in this call
  int64_t decided_first_step = 0;  // of a switch: the steps whose load the daemon decided on
  int64_t decided_last_step = 0;
  int64_t decision = 0;  // of a switch: the daemon's number of the decision; its chunks share it
  std::string policy;  // of a switch: that decided; "rollback" when an operator named the placement
  std::string asked_by;  // of a switch: the operator who asked for it; empty: the daemon's policy
  // The daemon's sentence for a switch; or why a chunk was dropped; or "NOT_COUNTING: " and what
  // this rank counts no tokens of, from the second load window without tokens on.
  std::string reason;
};

struct ClientStats {
  bool connected = false;
  int64_t reconnects = 0;
  int64_t reports_sent = 0;
  // Times the daemon refused this rank, e.g. because another process speaks for it.
  int64_t refusals = 0;
  int64_t unknown_messages = 0;  // of a later daemon, which this library does not know; skipped
  int64_t dropped_steps = 0;     // steps whose counts were dropped because the daemon was away
  int64_t votes = 0;
  int64_t commits = 0;
  int64_t dropped_chunks = 0;  // second vote said no
  double disconnected_seconds = 0;
  int64_t session_waits_over_1ms = 0;  // of the training thread for the session's lock
};

// Threads: Record, StepBoundary, CheckExperts and Carry from the training thread; placement() too,
// or with its own ordering; stats() from any. EPLB_DISABLE=1 makes every call a no-op on all ranks;
// a rank that differs from the others stops the start. After fork() the child's copy is dead: every
// call does nothing and returns OK, the first one says so on stderr, and the parent's is not
// touched. A child can connect a client of its own unless its parent spoke to a daemon.
class Client {
 public:
  // Chooses the first placement on rank 0, gives it to all ranks and compares what must be equal.
  // Collective. errors: InvalidArgument for options, naming the field; FailedPrecondition when
  // ranks differ, naming field and ranks; DeadlineExceeded naming the ranks that did not come. No
  // daemon is no error.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options,
                                                         AllGather all_gather);
  ~Client();

  // Collective: allocates staging, connects the transport and compares row sizes. The tensors must
  // outlive the client. A pipeline stage gives those of its own layers, which need not be
  // consecutive and may be none; all its ranks give the same layers, and no other does.
  absl::Status RegisterExperts(std::span<const ExpertTensorView> tensors);

  // Finds per-expert tensors that were not registered: layer by layer all experts move by one slot
  // and back, and `probe` must say the same of each expert in all three places. placement() is the
  // probe's meanwhile; on return it is the one from before, and so is every registered byte.
  // Collective, between RegisterExperts and Close, not inside a step; best after some steps, when
  // no two experts are alike. The verdict is equal on all ranks.
  // stream: as for StepBoundary. cost: two switches of every layer, three probes of every slot.
  // errors: InvalidArgument naming layer, expert, slots and rank; FailedPrecondition when a probe
  // fails or all experts of a layer give the same; Unavailable when rows could not be moved (the
  // old ones are in place); Aborted and DataLoss as StepBoundary.
  absl::Status CheckExperts(const ExpertProbe& probe, void* stream = nullptr);

  // Moves every registered row to another placement, or back, and nothing else: placement() and
  // device_tables() stay those of the version in force, the daemon learns nothing, and
  // row_placement() is where the rows are. So a trainer's own checkpoint code finds experts in the
  // order that it knows (docs/embedding.md). Collective, between two steps, after RegisterExperts.
  // While the rows are elsewhere, a forward would meet the wrong experts: Record, RecordSplit,
  // StepBoundary, CheckExperts and the calls on rows of replicas are FailedPrecondition.
  // physical_to_logical_map: [L, S], equal on all ranks, where an expert's lowest slot is its
  // primary; empty, or the map of placement(): back. Weights go to all replicas. State does so with
  // state_placement kEveryReplica; with kWithPrimary it is the primary's row alone, and those of
  // the others have no meaning. What is written into the rows of one replica has to be written into
  // all of them: on the way back any of them is the source. stream: as for StepBoundary. cost: one
  // switch of the layers that differ, layers_per_chunk at a time. Derived tensors are rebuilt. With
  // EPLB_DISABLE=1 it does nothing. errors, before anything moves: InvalidArgument naming layer and
  // slot, FailedPrecondition on all ranks when one refused or they were given different maps,
  // naming ranks; Unavailable when the first rows could not be moved: they are where they were.
  // Rows that fail half-way end the run with DataLoss, a rank that is gone with Aborted: every
  // later call returns the same.
  absl::Status Carry(std::span<const int32_t> physical_to_logical_map, void* stream = nullptr);

  // Carries the rows to kStaticPlacement's layout, calls `body`, and carries them back to where
  // they were, also after its error. errors: body's, else Carry's.
  absl::Status InStaticOrder(const std::function<absl::Status()>& body, void* stream = nullptr);

  // Experts in several slots stay one expert in training (docs/replicas-in-training.md). The next
  // three are collective among the ranks of an EP group, on the training thread between two
  // boundaries: each rank gives rows of the same layers, sizes and types in the same order. They
  // carry rows by the client's transport and staging, and send nothing in layers whose experts have
  // one replica each. stream: as for StepBoundary; the calls wait for other ranks' rows, not for
  // the GPU's last additions and copies, which `stream` gets to its next work after. errors:
  // InvalidArgument and FailedPrecondition as RegisterExperts and StepBoundary, naming the rows;
  // ResourceExhausted for a row that is larger than staging: nothing was begun. Aborted when a rank
  // is gone, failed, gave other rows, or did not come within vote_deadline: rows are half done, so
  // every later call of every rank returns the same. With EPLB_DISABLE=1 they do nothing where no
  // expert has replicas, and are FailedPrecondition where one has.

  // Adds to each primary's row those of the other replicas, in the order of replicas: equal input
  // gives equal bits; a second call adds them again. With state_placement kEveryReplica the others
  // get the sum as well, so that the optimizer updates every replica; with kWithPrimary their rows
  // stay as they are.
  absl::Status ReduceGradients(std::span<const ReplicaRows> gradients, void* stream = nullptr);

  // Overwrites the rows of all other replicas by their primary's.
  absl::Status BroadcastWeights(std::span<const ReplicaRows> weights, void* stream = nullptr);

  // [L * E]: the sum of squares of each expert's rows at its primary, in float64, over the tensors
  // of its layer in their order; 0 in layers that are left out. After ReduceGradients, and
  // after the sum over data-parallel EP groups, it counts an expert once in a gradient's norm;
  // pipeline ranks have other layers, and expert-tensor-parallel ranks other pieces of an expert,
  // whose squares the trainer adds up. Equal to the bit on all ranks of the EP group, under any
  // placement. Waits for the GPU. cost: layers * slots of a GPU * 8 bytes from each rank of the
  // EP group to each other one. errors: ResourceExhausted, on all ranks and before anything is
  // carried, where that is more than the staging, whose size RegisterExperts sets by the registered
  // rows. With EPLB_DISABLE=1 always FailedPrecondition.
  absl::StatusOr<std::vector<double>> ExpertSquares(std::span<const ReplicaRows> gradients,
                                                    void* stream = nullptr);

  // Adds tokens routed by this rank's router to each expert in the current step: counts [E], before
  // capacity dropping, once per top-k choice, no padding. May be called several times a step
  // (gradient accumulation). With reduce "root" the counts are those of all ranks together, of all
  // layers, and on other ranks than 0 they are only checked; so they are on all but the first of
  // the ranks that share an expert. errors: InvalidArgument naming the layer, also for one that
  // this pipeline stage did not register.
  absl::Status Record(int32_t layer, std::span<const int64_t> counts);

  // The exact split of a batch (docs/splitting-a-batch.md): how many of an expert's tokens each of
  // its slots takes, so that the fullest GPU has the fewest. No rank is waited for: equal counts
  // give equal quotas on every rank. quotas: [S], written on success; those of an expert sum to its
  // tokens. own: [S], of them this rank's tokens, if `counts` has by_gpu or before and mine; empty:
  // not asked for. On an error nothing is written, and each rank with the same counts returns the
  // same message. errors: InvalidArgument naming layer and expert: sizes, a negative count, a sum
  // above 2^36, counts before and of this rank above the totals, a GPU of speed 0 that holds an
  // expert, an EP group above 1,024 GPUs. cost: some microseconds (tests/bench/split_bench.cc),
  // own by_gpu E * num_gpus more; the first split of a layer that a switch changed prepares it.
  // Threads: any, while no StepBoundary or CheckExperts of another one is under way; calls run one
  // after the other.
  absl::StatusOr<SplitFigures> Split(int32_t layer, const BatchCounts& counts,
                                     std::span<int64_t> quotas, std::span<int64_t> own = {});

  // Of the calls of Split that follow. errors: InvalidArgument, and the options stay as they were:
  // speeds that are not num_gpus numbers in 1e-3..1e3 or 0, a speed of 0 for a GPU that holds an
  // expert, a slack outside 0..1. Threads: as Split.
  absl::Status SetSplitOptions(const SplitOptions& options);

  // Whether all ranks of an EP group would split alike: compares layer, counts, options and the
  // placement in force. Split alone cannot see other ranks' counts. Collective among all ranks of
  // the job, on the training thread; for a start, a test, or each thousandth step. counts: the
  // totals or the matrix that Split gets. errors, one message on all ranks: FailedPrecondition
  // naming the ranks that differ, or one whose layer or counts Split refuses; or what the
  // all-gather reports. cost: one all-gather of some 200 bytes a rank. Does nothing with
  // EPLB_DISABLE=1.
  absl::Status CheckCounts(int32_t layer, std::span<const int64_t> counts);

  // Adds to the time that this rank's experts computed in the current step, forward and backward,
  // without waits for other ranks and without what does not grow with tokens. From these times
  // the daemon finds slow GPUs (docs/gpu-speeds.md); a rank that records none is left out. May be
  // called several times a step, on the training thread. errors: InvalidArgument for a time outside
  // 0..1e6 s.
  absl::Status RecordStepTime(double seconds);

  // With split "batch": a batch of this layer was routed by `quotas` [S], the tokens of each slot,
  // those of all ranks of the EP group together. Once a batch, so several times a step with
  // gradient accumulation, and alike on all ranks of the EP group: the daemon's measured
  // balancedness is made of them. Batches that are not recorded leave their window without one.
  // cost: O(S). errors: InvalidArgument naming the layer and slot; FailedPrecondition with split
  // "equal".
  absl::Status RecordSplit(int32_t layer, std::span<const int64_t> quotas);

  // Once per optimizer step, also a skipped one, on every rank; steps rise by one from first_step.
  // Every vote_every steps all ranks vote and may migrate and switch one chunk; with `ahead` the
  // switch comes at the vote after the one that agreed. The next forward comes after the call.
  // stream: the cudaStream_t of expert work, for tensors in GPU memory; null is CUDA's legacy
  // default stream. For tensors in host memory it is not looked at.
  // errors: Aborted naming the missing ranks (the run ends: stop), DataLoss (ranks ran
  // different placements: stop), FailedPrecondition for a step out of order. After Aborted or
  // DataLoss every later call returns the same.
  absl::StatusOr<BoundaryResult> StepBoundary(int64_t step, void* stream = nullptr);

  const PlacementView& placement() const;
  // Where the registered rows are: placement(), unless Carry moved them elsewhere. Its version is
  // that of placement(), its digest its own.
  const PlacementView& row_placement() const;
  // Addresses are null before RegisterExperts: the tables lie in the same memory as the tensors
  // that it is given. With EPLB_DISABLE=1 they are there, too.
  const DeviceTables& device_tables() const;
  // Transport that carries the rows now: "host", "peer", "nccl" or "peer+nccl"; those of GPU memory
  // may become "host" later (docs/transports.md). Empty before RegisterExperts.
  std::string_view transport() const;
  ClientStats stats() const;
  const std::string& run_id() const;

  // Says goodbye to the daemon, within 2 s; `reason` "finished" is the normal end. It waits up to
  // 3 s for the other ranks if rows moved after the last vote, of replicas or with `ahead`: some
  // may still be taking theirs. Called by the destructor if not before.
  void Close(std::string_view reason);

  struct Impl;  // client/client_impl.h
  explicit Client(std::unique_ptr<Impl> impl);

 private:
  // True in a child that was forked after this client was made.
  bool IsForkedCopy() const;
  std::unique_ptr<Impl> impl_;
};

// An AllGather through the daemon, for launchers without a collective of their own. It takes job,
// run, rank, world_size, endpoint, tls and start_deadline of the options; the job needs a
// name of its own, and the run one, by `run_id`, EPLB_LAUNCH_ID, torchrun or SLURM. A
// daemon that restarts is waited for; should it die between the answers to the last all-gather of a
// start, ranks that did not get theirs fail at the deadline.
// Each all-gather fails on every rank with DeadlineExceeded after start_deadline, naming the ranks
// that did not come; with FailedPrecondition when two launches have one name; with Unavailable
// within seconds where nobody listens. errors of the options: InvalidArgument, by the first call.
AllGather MakeDaemonAllGather(const ClientOptions& options);

}  // namespace eplb

#endif  // EPLB_CLIENT_CLIENT_H_
