"""Kernels with one thing taken away that a GPU needs: each must fail the tests that are named.

`old` stands exactly once in `file`; else nothing is built, and the mutant needs another look.
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    kernel: str  # the .cu file
    file: str  # file that is changed: the kernel's own, or one of cuda/ or placement/split/ that it includes
    old: str
    new: str
    tests: str  # a filter of cuda_emulated_test; all of them pass without the mutant


COPY = "*LaunchCopyRowsTest.CopiesAndSums*"
ADD = "*LaunchAddRowsTest.AddsAs*"
SQUARE = "*LaunchSquareRowsTest.SumsWith*"
LONG_SQUARE = "*LaunchSquareRowsTest.SumsLongRows*"
COUNT = "LaunchCountTest*.EqualsThePlainReference"
ROUTE = "LaunchRouteTest*.EqualsThePlainReference"
QUOTA = "LaunchQuotaRouteTest*.EqualsThePlainReference*"
SPLIT = "LaunchSplitTest.SmallShapes*"
EXCHANGE = "LaunchSplitExchangeTest.AllCounts*"
NOTE = "SplitLoopGpuTest.FiguresAre*"
TURN = "LaunchTurnTest*.HasTheBitsOfTheHost"

BARRIERS = [
    Mutant("copy_sums_warps_before_all_have_written", "cuda/copy.cu", "cuda/copy.cu",
           "warp_sums[warp] = value;\n  __syncthreads();", "warp_sums[warp] = value;\n", COPY),
    Mutant("copy_writes_warps_before_all_are_read", "cuda/copy.cu", "cuda/copy.cu",
           "  __syncthreads();  // the next call writes warp_sums\n", "", COPY),
    Mutant("copy_shuffles_with_lanes_that_do_not_come", "cuda/copy.cu", "cuda/copy.cu",
           "if (warp == 0) value = WarpSum(lane < num_warps ? warp_sums[lane] : 0);",
           "if (warp == 0 && lane < num_warps) value = WarpSum(warp_sums[lane]);", COPY),
    Mutant("count_adds_before_the_histogram_is_clear", "cuda/count.cu", "cuda/count.cu",
           "  if (kFits) ClearHistogram(args, histogram);\n  __syncthreads();\n", "  if (kFits) ClearHistogram(args, histogram);\n", COUNT),
    Mutant("count_merges_before_all_have_added", "cuda/count.cu", "cuda/count.cu",
           "  __syncthreads();\n  MergeHistogram(args, histogram);\n", "  MergeHistogram(args, histogram);\n", COUNT),
    Mutant("turn_counts_before_the_histogram_is_clear", "cuda/turn.cu", "cuda/turn.cu",
           "ClearHistogram(choices, histogram);\n  __syncthreads();\n", "ClearHistogram(choices, histogram);\n", TURN),
    Mutant("turn_merges_before_all_have_counted", "cuda/turn.cu", "cuda/turn.cu",
           "  __syncthreads();\n  MergeHistogram(choices, histogram);\n", "  MergeHistogram(choices, histogram);\n", TURN),
    Mutant("route_begins_before_its_table_is_loaded", "cuda/route.cu", "cuda/route.cu",
           "  table.Load(args);\n  __syncthreads();\n", "  table.Load(args);\n", ROUTE),
    Mutant("route_merges_before_all_have_added", "cuda/route.cu", "cuda/route.cu",
           "  if (!counts) return;\n  __syncthreads();\n", "  if (!counts) return;\n", ROUTE),
    Mutant("route_by_any_table_adds_before_the_histogram_is_clear", "cuda/route.cu", "cuda/route.cu",
           "  if (fits) ClearHistogram(choices, histogram);\n  __syncthreads();\n",
           "  if (fits) ClearHistogram(choices, histogram);\n", ROUTE),
    Mutant("route_by_any_table_merges_before_all_have_added", "cuda/route.cu", "cuda/route.cu",
           "choices.counts == nullptr) return;\n  __syncthreads();\n", "choices.counts == nullptr) return;\n", ROUTE),
    Mutant("squares_add_lanes_before_all_have_written", "cuda/square_rows.cu", "cuda/square_rows.cu",
           "thread);\n    __syncthreads();\n", "thread);\n", SQUARE),
    Mutant("squares_run_ahead_in_the_tree", "cuda/square_rows.cu", "cuda/square_rows.cu",
           "AddLane(lanes, thread, distance);\n      __syncthreads();\n", "AddLane(lanes, thread, distance);\n", SQUARE),
    Mutant("squares_have_a_barrier_that_few_reach", "cuda/square_rows.cu", "cuda/square_rows.cu",
           "      if (thread < distance) AddLane(lanes, thread, distance);\n      __syncthreads();\n",
           "      if (thread < distance) {\n        AddLane(lanes, thread, distance);\n        __syncthreads();\n      }\n", SQUARE),
    Mutant("split_lanes_run_ahead", "cuda/split.cu", "cuda/kernels/lane_team.h",
           "i < count; i += kLanes) work(i);\n    machine_.Sync();\n", "i < count; i += kLanes) work(i);\n", SPLIT),
    Mutant("split_consumes_quotas_before_all_are_written", "cuda/split.cu", "cuda/kernels/batch_split_body.h",
           "  if (own == nullptr) return;\n  block.Sync();\n", "  if (own == nullptr) return;\n", SPLIT),
    Mutant("quota_adds_up_limits_before_all_are_loaded", "cuda/quota_route.cu", "cuda/quota_route.cu",
           "  table.Load(args);\n  __syncthreads();\n", "  table.Load(args);\n", QUOTA),
    Mutant("quota_adds_up_warps_before_all_have_counted", "cuda/quota_route.cu", "cuda/quota_route.cu",
           "counters, hand);\n    __syncthreads();\n    table.AddUpWarps", "counters, hand);\n    table.AddUpWarps", QUOTA),
    Mutant("quota_writes_slots_before_the_warps_are_added_up", "cuda/quota_route.cu", "cuda/quota_route.cu",
           "AddUpWarps(choices);\n    __syncthreads();\n", "AddUpWarps(choices);\n", QUOTA),
    Mutant("quota_writes_a_counter_that_others_still_read", "cuda/quota_route.cu", "cuda/quota_route.cu",
           "before = counters[bin];\n    Warp::Sync();\n", "before = counters[bin];\n", QUOTA),
    Mutant("quota_reads_before_its_turn", "cuda/quota_route.cu", "cuda/quota_route.cu", "  AwaitTurn();\n", "", QUOTA),
    Mutant("exchange_reads_before_its_turn", "cuda/split_exchange.cu", "cuda/split_exchange.cu", "  AwaitTurn();\n", "", EXCHANGE),
    Mutant("exchange_asks_before_all_counts_are_written", "cuda/split_exchange.cu", "cuda/split_exchange.cu",
           "x) work(i);\n    __syncthreads();\n", "x) work(i);\n", EXCHANGE),
    Mutant("exchange_asks_before_the_counts", "cuda/split_exchange.cu", "cuda/kernels/split_exchange_body.h",
           "  const int64_t number = *args.number + 1;\n",
           "  const int64_t number = *args.number + 1;\n  if (block.leader()) StoreShared(mailbox.asked, number);\n", EXCHANGE),
    Mutant("exchange_shares_what_the_leader_has_not_written", "cuda/split_exchange.cu", "cuda/split_exchange.cu",
           "*shared = value;\n    __syncthreads();\n", "*shared = value;\n", EXCHANGE),
]

TAILS = [
    Mutant("copy_takes_whole_words_at_the_end", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "static_cast<int32_t>(left < kChecksumLaneBytes ? left : kChecksumLaneBytes)",
           "static_cast<int32_t>(kChecksumLaneBytes)", COPY),
    Mutant("copy_takes_whole_units_at_the_end", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "tile.end - (tile.end - begin) % kCopyUnitBytes", "tile.end", COPY),
    Mutant("copy_takes_a_unit_of_a_tile_without_one", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "if (tile.end - tile.begin < head + kCopyUnitBytes)", "if (false)", COPY),
    Mutant("copy_takes_whole_lanes_at_the_end", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "range.end - (range.end - range.begin) % kChecksumLaneBytes", "range.end", COPY),
    Mutant("copy_forgets_the_lane_that_the_first_unit_ends", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "(void)CopyRaggedLanes<false>(row, {begin - shift, begin}, thread, num_threads);", "", COPY),
    Mutant("copy_forgets_the_lane_that_the_last_unit_begins", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "{units.end - shift, tile.end}", "{units.end, tile.end}", COPY),
    Mutant("copy_sums_lanes_where_units_begin", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "static_cast<int32_t>(head % kChecksumLaneBytes)", "0", COPY),
    Mutant("copy_takes_a_round_that_is_not_whole", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "offset + (kUnitsUnderWay - 1) * step < range.end", "offset < range.end", COPY),
    Mutant("add_takes_whole_units_at_the_end", "cuda/add_rows.cu", "cuda/kernels/add_rows_body.h",
           "range.end - (range.end - whole.begin) % kCopyUnitBytes", "range.end", ADD),
    Mutant("add_takes_a_pair_at_the_end_where_one_is_left", "cuda/add_rows.cu", "cuda/kernels/add_rows_body.h",
           "range.end - (range.end - range.begin) % static_cast<int64_t>(sizeof(Word))", "range.end", ADD),
    Mutant("add_forgets_what_is_before_the_first_unit", "cuda/add_rows.cu", "cuda/kernels/add_rows_body.h",
           "AddElements<Element>(row, {range.begin, whole.begin}, thread, num_threads);", "", ADD),
    Mutant("squares_take_whole_units_at_the_end", "cuda/square_rows.cu", "cuda/kernels/square_rows_body.h",
           "if (at >= left) break;", "", SQUARE),
    Mutant("squares_load_the_last_unit_whole", "cuda/square_rows.cu", "cuda/kernels/square_rows_body.h",
           "result.end < num_whole ? result.end : num_whole", "result.end", SQUARE),
    Mutant("squares_load_a_round_that_is_not_whole", "cuda/square_rows.cu", "cuda/kernels/square_rows_body.h",
           "unit + (kSquareUnitsUnderWay - 1) * kSquareLanes < units.whole_end", "unit < units.whole_end", SQUARE),
    Mutant("squares_of_a_part_go_on_to_the_next", "cuda/square_rows.cu", "cuda/kernels/square_rows_body.h",
           "if (result.end > num_units) result.end = num_units;", "result.end = num_units;", LONG_SQUARE),
    Mutant("squares_leave_the_last_parts_of_a_row_out", "cuda/square_rows.cu", "cuda/square_rows.cu",
           "args.num_rows * kMaxSquareParts;", "args.num_rows * 48;", LONG_SQUARE),
    Mutant("squares_of_rows_that_are_not_there", "cuda/square_rows.cu", "cuda/square_rows.cu",
           "if (row >= args.num_rows) return;", "", SQUARE),
    Mutant("count_reads_whole_quads_at_the_end", "cuda/count.cu", "cuda/kernels/count_body.h",
           "chunk.end - chunk.end % kQuad", "chunk.end", COUNT),
    Mutant("count_forgets_the_choices_after_the_last_quad", "cuda/count.cu", "cuda/count.cu",
           "index < chunk.end; index", "index < 0; index", COUNT),
    Mutant("route_takes_a_quad_for_one_token's", "cuda/route.cu", "cuda/kernels/count_body.h", "if (i == start.next) {", "if (false) {", ROUTE),
    Mutant("route_writes_whole_quads_at_the_end", "cuda/route.cu", "cuda/kernels/count_body.h",
           "chunk.end - chunk.end % kQuad", "chunk.end", ROUTE),
    Mutant("route_has_no_place_for_ids_out_of_range", "cuda/route.cu", "cuda/route.cu", "place <= args.table.num_slots",
           "place < args.table.num_slots", ROUTE),
    Mutant("quota_takes_choices_behind_the_end", "cuda/quota_route.cu", "cuda/quota_route.cu",
           "return round < rounds && IndexOf(round) < end;", "return round < rounds;", QUOTA),
    Mutant("quota_forgets_a_chunk_before", "cuda/quota_route.cu", "cuda/quota_route.cu",
           "index < end ?", "index + num_experts < end ?", QUOTA),
]

ALIGNMENTS = [
    Mutant("copy_of_any_alignment_by_vectors", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "(source - destination) % kCopyUnitBytes != 0) return -1", "false) return -1", COPY),
    Mutant("copy_begins_with_a_vector_anywhere", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "const int64_t begin = tile.begin + head;", "const int64_t begin = tile.begin;", COPY),
    Mutant("copy_of_any_alignment_by_8_bytes", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "if (AreAligned(row, sizeof(uint64_t)))", "if (true)", COPY),
    Mutant("copy_of_any_alignment_by_4_bytes", "cuda/copy.cu", "cuda/kernels/copy_body.h",
           "if (AreAligned(row, sizeof(uint32_t)))", "if (true)", COPY),
    Mutant("add_of_any_alignment_by_vectors", "cuda/add_rows.cu", "cuda/kernels/add_rows_body.h",
           "head >= 0 && AreAligned(row, sizeof(typename Element::Stored))",
           "AreAligned(row, sizeof(typename Element::Stored))", ADD),
    Mutant("add_by_units_that_cut_elements", "cuda/add_rows.cu", "cuda/kernels/add_rows_body.h",
           "head >= 0 && AreAligned(row, sizeof(typename Element::Stored))", "head >= 0", ADD),
    Mutant("add_of_any_alignment_by_words", "cuda/add_rows.cu", "cuda/kernels/add_rows_body.h",
           "else if (AreAligned(row, sizeof(Word)))", "else if (true)", ADD),
    Mutant("squares_of_any_alignment_by_elements", "cuda/square_rows.cu", "cuda/kernels/square_rows_body.h",
           "if (aligned) {", "if (true) {", SQUARE),
    Mutant("squares_of_any_alignment_by_vectors", "cuda/square_rows.cu", "cuda/kernels/square_rows_body.h",
           "if (!IsAligned(row.source, alignof(CopyUnit))) result.whole_end = result.begin;", "", SQUARE),
    Mutant("route_reads_ids_of_any_alignment_by_vectors", "cuda/route.cu", "cuda/route.cu",
           "Smaller(EndOfQuads<ExpertId>(chunk, choices.expert_ids),", "Smaller(chunk.end - chunk.end % kQuad,", ROUTE),
    Mutant("route_writes_slots_of_any_alignment_by_vectors", "cuda/route.cu", "cuda/route.cu",
           "EndOfQuads<ExpertId>(chunk, args.slots))", "chunk.end - chunk.end % kQuad)", ROUTE),
]

RACES = [
    Mutant("split_lanes_read_on_while_the_leader_pushes", "cuda/split.cu", "placement/split/split_body.h",
           "    team_.Sync();  // all members have read these tokens\n", "", SPLIT),
    Mutant("split_lanes_read_tokens_before_the_leader_has_written_them", "cuda/split.cu", "placement/split/split_body.h",
           "part_tokens[step.in] = in;\n    }\n    team_.Sync();\n", "part_tokens[step.in] = in;\n    }\n", SPLIT),
    Mutant("split_every_lane_takes_the_room_of_a_gpu", "cuda/split.cu", "cuda/kernels/lane_team.h",
           "if (gpu % kLanes == Machine::lane()) Set(", "Set(", SPLIT),
    Mutant("split_adds_without_an_atomic", "cuda/split.cu", "cuda/kernels/lane_team.h", "machine_.AddTo(sum, value);", "sum += value;", SPLIT),
    Mutant("split_note_is_numbered_by_every_thread", "cuda/split_exchange.cu", "cuda/kernels/split_exchange_body.h",
           "  if (!block.leader()) return;\n", "", NOTE),
    Mutant("count_adds_to_the_histogram_without_an_atomic", "cuda/count.cu", "cuda/kernels/histogram_device.cuh",
           "atomicAdd(&histogram[bin], 1U);", "histogram[bin] += 1;", COUNT),
    Mutant("route_adds_to_the_counters_without_an_atomic", "cuda/route.cu", "cuda/kernels/histogram_device.cuh",
           "if (count != 0) AddToCell(args, bin, count);", "if (count != 0) *CountCell(args, bin) += count;", ROUTE),
    Mutant("quota_adds_chunks_without_an_atomic", "cuda/quota_route.cu", "cuda/quota_route.cu",
           "atomicAdd(&begin_[i % num_experts], sum);", "begin_[i % num_experts] += sum;", QUOTA),
    Mutant("quota_counts_what_is_beyond_without_an_atomic", "cuda/quota_route.cu", "cuda/quota_route.cu",
           "Warp::AddTo(*args.beyond, int64_t{1});", "*args.beyond += 1;", QUOTA),
]

MUTANTS = BARRIERS + TAILS + ALIGNMENTS + RACES
