// Client in C++ for programs of this repository. It is not installed; users have client/c/eplb.h.
//
//   auto client = eplb::Client::Connect(options, all_gather);  // collective, before weights exist
//   ... allocate the local slots of client->placement() ...
//   client->RegisterExperts(tensors);                        // collective
//   for (step = 0; ...; ++step) {
//     forward, backward, optimizer
//     client->Record(layer, counts);                         // for each MoE layer
//     client->StepBoundary(step, stream);                    // may migrate and switch
//   }
//   client->Close("finished");
//
// docs/counting-on-the-gpu.md shows how routers on a GPU count and route.
#pragma once

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

#include "client/rows/paths/nccl_settings.h"

namespace eplb::cuda {
struct CountArgs;  // cuda/kernels/count_body.h
}

namespace eplb {

// Returns the bytes of all ranks, in rank order; see client/rows/control/control_channel.h.
using AllGather = std::function<absl::StatusOr<std::vector<std::string>>(std::string_view bytes)>;

// kWeight: every replica has the row. kState: StatePlacement chooses which replicas have it.
// kDerived: computed from the other tensors, so it is rebuilt instead of moved.
enum class Role { kWeight, kState, kDerived };
enum class StatePlacement { kWithPrimary, kEveryReplica };

// Computes a derived tensor again for the local slots that received rows, in rising order. Called
// once per layer and switch on the training thread, inside StepBoundary, CheckExperts and Carry.
// By then the rows are in place for work on the call's stream, and placement() describes them. An
// error ends the run with DataLoss.
using Rebuild = std::function<absl::Status(int32_t layer, std::span<const int32_t> local_slots)>;

// One tensor of one layer: local slot i is the row_bytes bytes at base + i * row_stride. A derived
// tensor has a name, a layer and `rebuild`; its other fields stay empty.
// docs/registering-tensors.md lists the tensors that a trainer registers.
struct ExpertTensorView {
  std::string name;
  int32_t layer = 0;
  Role role = Role::kWeight;
  void* base = nullptr;
  int32_t num_rows = 0;
  int64_t row_bytes = 0;
  int64_t row_stride = 0;
  Rebuild rebuild = nullptr;  // for a derived tensor only
};

// Returns a digest of what the expert in a local slot computes for a fixed input, and of everything
// that must move with the expert. An expert's digest is equal in every slot and on every rank of
// the EP group.
using ExpertProbe = std::function<absl::StatusOr<uint64_t>(int32_t layer, int32_t local_slot)>;

// kBfloat16 and kFloat16 are added as floats. Each addition is rounded once, to nearest, ties to
// even, so a sum over r replicas is rounded r - 1 times, in the order of replicas.
enum class GradientType { kFloat32, kFloat64, kBfloat16, kFloat16 };

// Rows of a layer's local slots besides the registered tensors, such as gradients. Local slot i is
// the row_bytes bytes at base + i * row_stride, in the same memory as the registered tensors.
struct ReplicaRows {
  std::string name;  // for messages
  int32_t layer = 0;
  GradientType type = GradientType::kFloat32;  // ignored by BroadcastWeights
  void* base = nullptr;
  int32_t num_rows = 0;
  int64_t row_bytes = 0;
  int64_t row_stride = 0;
};

// PEM files for a daemon that uses TLS: all three, or none for plaintext. An empty field takes its
// value from EPLB_TLS_CA, EPLB_TLS_CERT, EPLB_TLS_KEY or EPLB_TLS_SERVER_NAME. The files are read
// at each connection.
struct DaemonTls {
  std::string ca;           // authorities, one of which signed the daemon's certificate
  std::string cert;         // certificate chain of this rank
  std::string key;          // private key of this rank, without a password
  std::string server_name;  // name in the daemon's certificate; default the endpoint's host
};

// Value of ClientOptions::initial_placement that requests the static layout.
inline constexpr std::string_view kStaticPlacement = "static";

// Values of ClientOptions::transport.
inline constexpr const char* kTransportNames[] = {"auto", "host", "peer", "nccl", "peer+nccl"};

struct ClientOptions {
  std::string job = "default";  // 1 to 128 characters of [A-Za-z0-9._-]
  // Name of this run, 1 to 111 characters of [A-Za-z0-9._-], equal on all ranks. Default:
  // EPLB_LAUNCH_ID, or torchrun's run or SLURM's job and step, each with its count of restarts; if
  // none is set, no name. Rank 0 appends a random part, so that Client::run_id() is unique.
  std::string run_id;
  // True replaces a run of this job even if its steps advance; EPLB_TAKE_OVER=1 does the same. If
  // false, this run is balanced once the other run has ended or stands still. Equal on all ranks.
  bool take_over = false;
  int32_t rank = 0;
  // pipeline_parallel_size * data-parallel copies * num_gpus * expert_tensor_parallel, in the order
  // of Megatron's tp-ep-dp-pp; see docs/registering-tensors.md.
  int32_t world_size = 1;
  // Pipeline stages. Each stage registers, moves and counts layers of its own.
  int32_t pipeline_parallel_size = 1;
  // Ranks that share every expert. The first of them counts tokens for all.
  int32_t expert_tensor_parallel = 1;
  // Address of eplbd: HOST:PORT or unix:PATH, or a list "A,B" of at most 8 daemons that stand in
  // for each other, in the same order on all ranks (docs/endpoints.md). env:VARIABLE, file:PATH
  // and srv:NAME (DNS) name a place that holds the list; the client waits until the file exists.
  // Empty: the job runs without a daemon.
  std::string endpoint;
  // True makes Connect fail on all ranks if no daemon answers rank 0. If false, the job starts
  // without a daemon.
  bool require_daemon = false;
  DaemonTls tls;  // for connections to the daemon
  int32_t num_layers = 0;
  int32_t num_experts = 0;
  int32_t num_slots = 0;
  int32_t num_gpus = 1;
  int32_t num_nodes = 1;
  int32_t num_groups = 1;
  int64_t first_step = 0;  // step of the first StepBoundary, e.g. that of a checkpoint
  // Most steps between votes; equal on all ranks. While no rank knows or expects a proposal, votes
  // are at multiples of it. A known proposal is voted on after each step. With a daemon, a rank
  // expects one in 32 steps from the start of a run, and from each switch: it votes 1, 2, 4, ..
  // steps after the end of a load window.
  int32_t vote_every = 8;
  int32_t report_every = 2;  // steps in the first load windows; the daemon sets later lengths
  // "rank": each rank reports its own counts. "root": rank 0 reports the sum over all ranks, which
  // the job's own collective computes.
  std::string reduce = "rank";
  // How the trainer splits an expert's tokens among its replicas. "equal": in equal shares.
  // "batch": exactly, each batch by its own counts; RecordSplit then reports what ran.
  std::string split = "equal";
  // Newest steps kept while the daemon is away. Older ones are dropped and counted.
  int32_t report_max_steps = 1000;
  // Staging has room for all slots of this many layers. A boundary that moves fewer experts of each
  // layer switches more layers, within the daemon's setting of the same name. 0: 4 layers, or as
  // many more as fit into 256 MiB.
  int32_t layers_per_chunk = 0;
  StatePlacement state_placement = StatePlacement::kEveryReplica;
  // For jobs whose registered rows no step changes (inference, frozen experts) and that register
  // weights only. Rows move while the next steps run, and the next vote switches. The pause is one
  // read of the rows that were sent, the vote and the commit. Equal on all ranks.
  // docs/transports.md has the cost and the checks.
  bool ahead = false;
  // "auto", "host", "peer" (CUDA IPC), "nccl" or "peer+nccl"; the last three need tensors in GPU
  // memory. "auto" takes "host" for host memory. For GPU memory it takes the first that every rank
  // can use: "peer" (or "peer+nccl" if EP groups span hosts), "nccl", "host". Rank 0 logs why it
  // skipped a transport.
  std::string transport = "auto";
  NcclSettings nccl;                       // docs/nccl-settings.md
  std::string bind_address = "127.0.0.1";  // numeric address at which other ranks reach this rank
  // kStaticPlacement: expert e in slot e, then the replicas, even if the daemon has another
  // placement for the job. Otherwise the path of a placement file, which rank 0 reads; if the path
  // ends in .jsonl, the file is a placements.jsonl and its last line counts. "./static" is a file
  // of that name. Empty: the daemon's placement; if there is none, the static layout.
  std::string initial_placement;
  // Path at which rank 0 writes placements.jsonl, anew at each start. Empty: not written.
  std::string placements_path;
  // Path of this rank's log for the validator, which is appended to. Empty: not written.
  std::string history_path;
  absl::Duration start_deadline = absl::Seconds(60);
  absl::Duration vote_deadline = absl::Seconds(600);
  absl::Duration transfer_deadline = absl::Seconds(30);
};

// The current placement on this rank. The spans keep their addresses for the life of the client.
// Their contents change only inside StepBoundary and CheckExperts; those of row_placement() change
// inside Carry as well.
struct PlacementView {
  int64_t version = 0;
  std::string digest;  // hexadecimal
  int32_t num_layers = 0, num_experts = 0, num_slots = 0;
  int32_t first_local_slot = 0, num_local_slots = 0;  // slots of this rank's GPU
  std::span<const int32_t> physical_to_logical_map;   // [L, S]
  std::span<const int32_t> logical_replica_count;     // [L, E]
  // [L, E, max_replicas], padded with -1. max_replicas = S - E + 1 is the most an expert can have.
  std::span<const int32_t> logical_to_physical_map;
  int32_t max_replicas = 0;
};

// The current placement for kernels: arrays in the memory of the expert tensors. Their addresses
// stay for the life of the client, so a captured graph can go on reading them. They change on the
// stream of StepBoundary and CheckExperts: work that the stream gets after the call reads the new
// contents. The slots of all experts of a layer are one list, ordered by expert, so a table has as
// many entries as there are slots.
struct DeviceTables {
  int32_t num_layers = 0, num_experts = 0, num_slots = 0;
  const int32_t* physical_to_logical_map = nullptr;  // [L, S], -1 in a slot that is not in use
  const int32_t* logical_replica_count = nullptr;    // [L, E]
  // Row l of `replicas` holds the slots of expert e, its primary first, from first_replica[l, e] up
  // to, but not including, first_replica[l, e + 1].
  const int32_t* replicas = nullptr;       // [L, S]
  const int32_t* first_replica = nullptr;  // [L, E + 1]
  // Slots to which this GPU sends its tokens, in the same form: only replicas on this GPU if the
  // expert has any. Row l of the next three is a cuda::RouteTable (cuda/route.h) for LaunchRoute.
  const int32_t* candidates = nullptr;       // [L, S]
  const int32_t* first_candidate = nullptr;  // [L, E + 1]
  // [L, S], 2^32 times the summed share of an expert's candidates up to and including this one. The
  // shares are equal, so LaunchRoute chooses the same without them, and faster.
  const uint32_t* thresholds = nullptr;
};

// Tokens of one layer of a batch, once per top-k choice, for Client::Split. Either `totals` or
// `by_gpu` is given.
struct BatchCounts {
  std::span<const int64_t> totals;  // [E], sum over all ranks of the EP group
  std::span<const int64_t> by_gpu;  // [num_gpus, E], row-major, one row per rank of the EP group
  // With totals, if each rank has the counts of lower ranks (an exclusive scan): tokens of the EP
  // group's lower ranks, and of this rank, [E] each. Both or neither.
  std::span<const int64_t> before;
  std::span<const int64_t> mine;
};

// Options of Client::Split. Equal on all ranks, like the counts.
struct SplitOptions {
  std::vector<double> gpu_speeds = {};  // [num_gpus], relative; 0 takes no tokens; empty: all equal
  // Fraction of the least maximum by which a GPU may exceed it [0, 1]. A larger slack moves fewer
  // tokens away from equal shares.
  double slack = 0;
};

// Evenness of a split. The load of a GPU is its tokens / its speed.
struct SplitFigures {
  int64_t version = 0;                 // placement that was split
  double peak = 0;                     // load of the fullest GPU
  double mean = 0;                     // mean load of the usable GPUs
  std::optional<double> balancedness;  // mean / peak; no value without tokens
  double equal_peak = 0;               // `peak` if each expert's replicas took equal shares
  // Proof that no split is better, in rising order: the experts that only these GPUs hold have too
  // many tokens for a lower peak. With slack the proof is for the least peak, which `peak` exceeds
  // by at most the slack.
  std::vector<int32_t> tight_gpus = {};
};

// Bounds of the batches that Client::CountFor and RouteFrom take.
struct SplitSetup {
  int64_t max_tokens = 0;  // most tokens of a batch on this rank; max_tokens * top_k <= 2^31
  int32_t top_k = 0;       // choices of each token
  // Longest wait of a stream for the split of a batch, 1 us to 60 s.
  absl::Duration deadline = absl::Milliseconds(1);
  // For tensors on a GPU. False: a thread of the client splits, which needs a CPU core and takes
  // the least time for batches that are hard to split. True: a kernel splits, so that no core is
  // needed and no batch is late. Both give equal bits; the kernel splits over up to 128 GPUs and
  // refuses batches above 2^24 choices of all ranks. SetSplitOptions then holds from the next
  // StepBoundary, and the kernels note 64 batches a layer in 512 * L * (S + 1) bytes of pinned
  // memory.
  bool split_on_gpu = false;
};

// Counts of batches since Client::PrepareSplit, and the newest split.
struct SplitLoopFigures {
  int64_t batches = 0;  // batches that RouteFrom routed, on a GPU once the stream reached them
  int64_t late = 0;     // batches that drew their slots because no split came by the deadline
  // Batches, also late, that drew because Split rejects their counts or a switch overtook them.
  int64_t refused = 0;
  // Choices that drew their slots, on a GPU of all batches but the newest. Without late and refused
  // batches the counts of some batches were not those of CountFor.
  int64_t drawn = 0;
  // Also of a late batch; version 0 and peak 0 before the first. If a kernel splits, without
  // tight_gpus, and only of batches whose placement was current when the figures were read.
  SplitFigures newest = {};
};

struct BoundaryResult {
  bool voted = false;
  bool switched = false;  // a chunk was committed: the next forward runs under `version`
  int64_t version = 0;
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  double pause_seconds = 0;       // time spent in this call
  double switch_seconds = 0;      // part of it from the ranks' vote to the commit, if switched
  bool votes_next = false;        // the next StepBoundary votes
  bool window_ends_next = false;  // a load window ends with the next step
  // The next five describe the decision behind a switch.
  int64_t decided_first_step = 0;  // steps whose load the decision covers
  int64_t decided_last_step = 0;
  int64_t decision = 0;  // number of the decision, which its chunks share
  std::string policy;    // policy that decided; "rollback" if an operator named the placement
  std::string asked_by;  // operator who asked for the switch; empty: the daemon's policy
  // Sentence of the daemon for a switch, the cause of a dropped chunk, or the reason that was given
  // to VoteNo. "NOT_COUNTING: " and the
  // layers whose tokens this rank does not count, from the second load window without tokens on.
  std::string reason;
};

struct ClientStats {
  bool connected = false;
  int64_t reconnects = 0;
  int64_t reports_sent = 0;
  int64_t refusals = 0;  // by the daemon, e.g. because another process reports for this rank
  int64_t unknown_messages = 0;  // skipped because only a newer library has them
  int64_t dropped_steps = 0;     // steps whose counts were dropped because the daemon was away
  int64_t votes = 0;
  int64_t commits = 0;
  int64_t dropped_chunks = 0;  // chunks that the second vote rejected
  double disconnected_seconds = 0;
  // Times the training thread waited longer than 1 ms for the session's lock.
  int64_t session_waits_over_1ms = 0;
};

// Client of one rank.
//
// Threads: the training thread calls Record, StepBoundary, CheckExperts and Carry. It also calls
// placement(), unless the caller orders the calls itself. Any thread may call stats().
//
// EPLB_DISABLE=1 makes every call a no-op, on all ranks. The start fails if ranks differ in it.
//
// After fork() the child's copy is dead: every call does nothing and returns OK, and the first one
// logs so on stderr. The parent's client is not affected. A child can connect a client of its own
// unless its parent was connected to a daemon.
class Client {
 public:
  // Chooses the first placement on rank 0, sends it to all ranks and compares the options that must
  // be equal. Collective. A missing daemon is no error unless require_daemon is set.
  // errors: InvalidArgument naming the option; FailedPrecondition naming field and ranks if ranks
  // differ; DeadlineExceeded naming the ranks that are missing.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options,
                                                         AllGather all_gather);
  ~Client();

  // Allocates staging, connects the transport and compares row sizes. Collective. The tensors must
  // outlive the client. A pipeline stage registers the tensors of its own layers, which need not be
  // consecutive and may be none. All its ranks register the same layers, and no other stage does.
  absl::Status RegisterExperts(std::span<const ExpertTensorView> tensors);

  // Finds per-expert tensors that were not registered. Layer by layer all experts move by one slot
  // and back, and `probe` must return one digest for each expert in all three places. During a
  // probe placement() describes the moved experts. On return placement() and every registered byte
  // are what they were before.
  // Collective, between RegisterExperts and Close, not inside a step. The result is equal on all
  // ranks. Call it after some steps, when no two experts are alike.
  // stream: see StepBoundary. cost: two switches of every layer, three probes of every slot.
  // errors: InvalidArgument naming layer, expert, slots and rank; FailedPrecondition if a probe
  // fails or all experts of a layer have one digest; Unavailable if rows could not be moved (the
  // old ones are in place); Aborted and DataLoss, see StepBoundary.
  absl::Status CheckExperts(const ExpertProbe& probe, void* stream = nullptr);

  // Moves every registered row to another placement, or back, so that a trainer's own checkpoint
  // code finds experts in its own order (docs/embedding.md). placement() and device_tables() stay
  // at the current version, the daemon gets no message, and row_placement() describes the rows.
  // Derived tensors are rebuilt. Collective, between two steps, after RegisterExperts.
  //
  // While the rows are elsewhere a forward would read the wrong experts. Record, RecordSplit,
  // StepBoundary, CheckExperts and the calls on rows of replicas return FailedPrecondition.
  //
  // physical_to_logical_map: [L, S], equal on all ranks; an expert's lowest slot is its primary.
  // Empty, or the map of placement(), moves the rows back. Weights are copied to all replicas, and
  // state as well with state_placement kEveryReplica. With kWithPrimary only the primary's row
  // holds the state; the rows of other replicas have no meaning.
  // A write into the row of one replica has to be made in all of them, because on the way back any
  // of them can be the source.
  // stream: see StepBoundary. cost: one switch of the layers that differ, as many as fit into
  // staging at a time. With EPLB_DISABLE=1 it does nothing. errors before any row moves:
  // InvalidArgument naming layer and slot; FailedPrecondition on all ranks, naming ranks, if one
  // rejected its map or the maps differ; Unavailable if the first rows could not be moved. Later,
  // rows that fail end the run with DataLoss and a lost rank ends it with Aborted: every later call
  // returns the same error.
  absl::Status Carry(std::span<const int32_t> physical_to_logical_map, void* stream = nullptr);

  // The next three keep the replicas of an expert alike in training
  // (docs/replicas-in-training.md). They are collective among the ranks of an EP group, on the
  // training thread between two boundaries. Each rank passes rows of the same layers, sizes and
  // types in the same order. The rows travel by the client's transport and staging; layers whose
  // experts have one replica each send nothing.
  // stream: see StepBoundary. The calls wait for the rows of other ranks, but not for the GPU's
  // last additions and copies, which precede later work on `stream`. errors: InvalidArgument and
  // FailedPrecondition as in RegisterExperts and StepBoundary, naming the rows; ResourceExhausted
  // before any work if a row is larger than staging. Aborted if a rank is lost, failed, passed
  // other rows, or did not answer within vote_deadline: some rows are done and some are not, so
  // every later call of every rank returns the same error. With EPLB_DISABLE=1 they do nothing if
  // no expert has replicas, and return FailedPrecondition if one has.

  // Adds the rows of the other replicas to each primary's row, in the order of replicas: equal
  // input gives equal bits. A second call adds them again. With state_placement kEveryReplica the
  // other replicas get the sum as well, so that the optimizer updates every replica. With
  // kWithPrimary their rows stay as they are.
  absl::Status ReduceGradients(std::span<const ReplicaRows> gradients, void* stream = nullptr);

  // Overwrites the rows of all other replicas by their primary's.
  absl::Status BroadcastWeights(std::span<const ReplicaRows> weights, void* stream = nullptr);

  // Returns [L * E]: the sum of squares of each expert's rows at its primary, in float64, over the
  // tensors of its layer in their order; 0 in layers without rows. After ReduceGradients, and after
  // the sum over data-parallel EP groups, the sums count each expert once in a gradient's norm.
  // Pipeline ranks hold other layers and expert-tensor-parallel ranks other pieces of an expert;
  // the trainer adds their squares up. The result is equal to the bit on all ranks of the EP group,
  // under any placement. Waits for the GPU.
  // cost: layers * slots of a GPU * 8 bytes from each rank of the EP group to each other rank.
  // errors: ResourceExhausted on all ranks, before any transfer, if that is more than the staging,
  // whose size follows the registered rows. With EPLB_DISABLE=1 always FailedPrecondition.
  absl::StatusOr<std::vector<double>> ExpertSquares(std::span<const ReplicaRows> gradients,
                                                    void* stream = nullptr);

  // Adds tokens routed by this rank's router to each expert in the current step. counts: [E],
  // before capacity dropping, once per top-k choice, without padding. A step may have several calls
  // (gradient accumulation). With reduce "root", rank 0 passes the sums over all ranks, for all
  // layers. Counts are only checked on the other ranks, and on all but the first of the ranks that
  // share an expert. errors: InvalidArgument naming the layer, also for a layer that this pipeline
  // stage did not register.
  absl::Status Record(int32_t layer, std::span<const int64_t> counts);

  // Splits a batch exactly (docs/splitting-a-batch.md): how many of an expert's tokens each of its
  // slots takes, so that the fullest GPU has the fewest. Does not wait for other ranks: equal
  // counts give equal quotas on every rank. quotas: [S], written on success; those of an expert sum
  // to its tokens. own: [S], the part of quotas that is this rank's tokens, if `counts` has by_gpu
  // or before and mine; may be empty. On an error nothing is written, and each rank with the same
  // counts returns the same message. errors: InvalidArgument naming layer and expert: sizes, a
  // negative count, a sum above 2^36, before + mine above the totals, a GPU of speed 0 that holds
  // an expert, an EP group above 1,024 GPUs. cost: some microseconds (tests/bench/split_bench.cc),
  // and E * num_gpus more for own by_gpu. The first split after a switch prepares the layer.
  // Threads: any, while no other thread is inside StepBoundary or CheckExperts; calls are
  // serialized.
  absl::StatusOr<SplitFigures> Split(int32_t layer, const BatchCounts& counts,
                                     std::span<int64_t> quotas, std::span<int64_t> own = {});

  // Sets the options of later calls of Split. errors: InvalidArgument, and the options stay as they
  // were, unless gpu_speeds are num_gpus numbers, each 0 or in [1e-3, 1e3]; for a speed of 0 of a
  // GPU that holds an expert; for a slack outside [0, 1]. Threads: see Split.
  absl::Status SetSplitOptions(const SplitOptions& options);

  // Checks that all ranks of an EP group would split alike: compares layer, counts, options and the
  // current placement, because Split cannot see the counts of other ranks. Collective among all
  // ranks of the job, on the training thread; for a start, a test, or every thousandth step.
  // counts: the totals or the matrix that Split gets. cost: one all-gather of some 200 bytes a
  // rank. errors, one message on all ranks: FailedPrecondition naming the ranks that differ, or a
  // rank whose layer or counts Split rejects; or the error of the all-gather. Does nothing with
  // EPLB_DISABLE=1.
  absl::Status CheckCounts(int32_t layer, std::span<const int64_t> counts);

  // The next three split a batch in the order of a stream, without a wait of the caller
  // (docs/splitting-a-batch.md): CountFor; an all-gather of the rows among the ranks of the EP
  // group by the caller, on the same stream; RouteFrom. Arrays are in the memory of the registered
  // tensors. On a GPU both calls only launch, also inside a graph capture; a captured graph follows
  // later switches. A thread of the client computes the split until Close ends it, or a kernel does
  // (SplitSetup::split_on_gpu). In host memory the calls compute. Threads: the training thread.

  // Allocates what the calls need, after RegisterExperts; calling it again frees the memory of the
  // first preparation, so that no graph that was captured before may be replayed. errors:
  // InvalidArgument naming the field; FailedPrecondition before RegisterExperts; ResourceExhausted.
  absl::Status PrepareSplit(const SplitSetup& setup);

  // Writes this rank's choices of each expert to row [E], and remembers `choices`, whose arrays
  // must stay until RouteFrom's work is done. If choices.counts is not null, adds to the counters.
  // errors: InvalidArgument naming the argument, also for more tokens than were prepared, and for a
  // row that shares memory with the choices; FailedPrecondition before PrepareSplit, and beside
  // CountFor or RouteFrom. Threads: any, while none is inside StepBoundary or CheckExperts.
  absl::Status CountFor(int32_t layer, const cuda::CountArgs& choices, int64_t* row,
                        void* stream = nullptr);

  // Writes the slots of the layer's choices of the last CountFor by the split of `gathered`
  // [num_gpus, E], the rows of the ranks of the EP group: each choice as Split's own quotas have
  // it. Choices beyond the quotas draw a replica of their expert, each equally likely, by token
  // number rank in the EP group * max_tokens + token: all choices of a batch whose counts Split
  // rejects, or whose split comes after the deadline. No choice is lost by it, and ranks need not
  // agree on it, because every replica computes the same. With split "batch" StepBoundary records
  // the splits of all batches that the stream has finished, as RecordSplit. slots: [num_tokens,
  // top_k] of the ids' type, -1 for padding and ids out of range; may be the ids. errors:
  // InvalidArgument naming the argument; FailedPrecondition before the layer's CountFor, which each
  // call needs, and while another thread is inside CountFor or RouteFrom.
  absl::Status RouteFrom(int32_t layer, const int64_t* gathered, void* slots,
                         void* stream = nullptr);

  // Threads: any, but not during PrepareSplit.
  SplitLoopFigures split_figures() const;

  // Adds to the time that this rank's experts computed in the current step, forward and backward,
  // excluding waits for other ranks and work that does not grow with tokens. The daemon finds slow
  // GPUs by these times (docs/gpu-speeds.md) and ignores ranks that record none. A step may have
  // several calls, on the training thread. errors: InvalidArgument for a time outside [0, 1e6] s.
  absl::Status RecordStepTime(double seconds);

  // With split "batch": records that a batch of this layer was routed by `quotas` [S], the tokens
  // of each slot over all ranks of the EP group. Call it once a batch, so several times a step with
  // gradient accumulation, and alike on all ranks of the EP group, but not for RouteFrom, whose
  // splits StepBoundary records. The daemon measures balancedness by these quotas; a window with a
  // batch that was not recorded is measured in equal shares. cost: O(S + E). errors:
  // InvalidArgument naming layer and slot; FailedPrecondition with split "equal".
  absl::Status RecordSplit(int32_t layer, std::span<const int64_t> quotas);

  // Makes this rank vote no in its next vote, so that nothing moves there on any rank, for a
  // trainer with gradients that would not move. A chunk that is staged ahead is dropped. reason:
  // returned by the boundary of that vote and written to the run directory; not empty.
  void VoteNo(std::string_view reason);

  // Ends an optimizer step, also a skipped one. Every rank calls it once a step; steps rise by one
  // from first_step. At least every vote_every steps, and each step while one knows a proposal,
  // they vote and may migrate and switch one chunk; with `ahead` the switch follows at the next
  // multiple of vote_every. The next forward starts after the call. stream: the cudaStream_t of
  // expert work, for tensors in GPU memory; null is CUDA's legacy default stream. Ignored for
  // tensors in host memory. errors: Aborted naming the missing ranks (the run ends: stop), DataLoss
  // (ranks ran different placements: stop), FailedPrecondition for a step out of order. After
  // Aborted or DataLoss every later call returns the same error.
  absl::StatusOr<BoundaryResult> StepBoundary(int64_t step, void* stream = nullptr);

  const PlacementView& placement() const;
  // Placement of the registered rows: placement(), unless Carry moved them. Its version is that of
  // placement(); its digest is its own.
  const PlacementView& row_placement() const;
  // Addresses are null before RegisterExperts, because the tables are in the memory of the tensors
  // that it registers. With EPLB_DISABLE=1 the tables exist, too.
  const DeviceTables& device_tables() const;
  // Transport that carries the rows now: "host", "peer", "nccl" or "peer+nccl". A transport of GPU
  // memory may become "host" later (docs/transports.md). Empty before RegisterExperts.
  std::string_view transport() const;
  ClientStats stats() const;
  const std::string& run_id() const;

  // Ends the session with the daemon, within 2 s. `reason` "finished" is the normal end. Other
  // ranks may still read this rank's rows if rows of replicas, or rows with `ahead`, moved after
  // the last vote. Then it waits up to 3 s more for those ranks. The destructor calls it if
  // necessary.
  void Close(std::string_view reason);

  struct Impl;  // client/client_impl.h
  explicit Client(std::unique_ptr<Impl> impl);

 private:
  // True in a child that was forked after this client was made.
  bool IsForkedCopy() const;
  std::unique_ptr<Impl> impl_;
};

// Returns an AllGather through the daemon, for launchers without a collective of their own. It uses
// job, run, rank, world_size, endpoint, tls and start_deadline of the options. The job needs a name
// of its own, and so does the run, from `run_id`, EPLB_LAUNCH_ID, torchrun or SLURM.
// The all-gather waits for a daemon that restarts. If the daemon dies between the answers to the
// last all-gather of a start, ranks without an answer fail at the deadline.
// errors of an all-gather, on every rank: DeadlineExceeded after start_deadline, naming the missing
// ranks; FailedPrecondition if two launches have one name; Unavailable within seconds if no daemon
// listens. Invalid options: InvalidArgument, by the first call.
AllGather MakeDaemonAllGather(const ClientOptions& options);

}  // namespace eplb
