/* The layout of every public struct and the value of every public constant, as numbers written by
 * hand for LP64: what a program compiled against 0.1 has in its binary. A change here breaks such
 * programs; new fields go to the end (docs/abi.md). No struct has holes, so a list whose fields
 * follow each other without gaps up to the struct's size is whole. Knows the public header only. */
#include <stdio.h>
#include <string.h>
#include <weft/weft.h>

typedef struct layout {
  const char *type, *field; /* field NULL: the struct's end */
  size_t expected, offset, bytes;
} layout;

#define FIELD(type, field, expected)                                                               \
  { #type, #field, expected, offsetof(type, field), sizeof(((type *)0)->field) }
#define END(type, expected)                                                                        \
  { #type, NULL, expected, sizeof(type), 0 }

static const layout layouts[] = {
    FIELD(weft_system_info, size, 0),
    FIELD(weft_system_info, cores, 8),
    FIELD(weft_system_info, isa, 16),
    FIELD(weft_system_info, blas, 24),
    FIELD(weft_system_info, cpu_available, 32),
    FIELD(weft_system_info, cuda_available, 36),
    FIELD(weft_system_info, cuda_reason, 40),
    FIELD(weft_system_info, mpi_available, 48),
    FIELD(weft_system_info, nvshmem_available, 52),
    FIELD(weft_system_info, mpi_reason, 56),
    FIELD(weft_system_info, nvshmem_reason, 64),
    END(weft_system_info, 72),

    FIELD(weft_world_config, size, 0),
    FIELD(weft_world_config, ranks, 8),
    FIELD(weft_world_config, hosts, 16),
    FIELD(weft_world_config, arena_bytes, 24),
    FIELD(weft_world_config, timeout_ms, 32),
    FIELD(weft_world_config, device, 40),
    FIELD(weft_world_config, reserved, 44),
    FIELD(weft_world_config, gpus, 48),
    END(weft_world_config, 56),

    FIELD(weft_exchange, size, 0),
    FIELD(weft_exchange, rank, 8),
    FIELD(weft_exchange, user, 16),
    FIELD(weft_exchange, allgather, 24),
    FIELD(weft_exchange, barrier, 32),
    END(weft_exchange, 40),

    FIELD(weft_unique_id, bytes, 0),
    END(weft_unique_id, 256),

    FIELD(weft_comm_info, size, 0),
    FIELD(weft_comm_info, rank, 8),
    FIELD(weft_comm_info, ranks, 16),
    FIELD(weft_comm_info, world_rank, 24),
    FIELD(weft_comm_info, world_ranks, 32),
    FIELD(weft_comm_info, host, 40),
    FIELD(weft_comm_info, hosts, 48),
    FIELD(weft_comm_info, local_rank, 56),
    FIELD(weft_comm_info, local_ranks, 64),
    FIELD(weft_comm_info, ranks_per_host, 72),
    FIELD(weft_comm_info, timeout_ms, 80),
    FIELD(weft_comm_info, device, 88),
    FIELD(weft_comm_info, gpu, 92),
    FIELD(weft_comm_info, transport, 96),
    END(weft_comm_info, 104),

    FIELD(weft_async_error, size, 0),
    FIELD(weft_async_error, status, 8),
    FIELD(weft_async_error, reserved, 12),
    FIELD(weft_async_error, rank, 16),
    FIELD(weft_async_error, peer, 24),
    FIELD(weft_async_error, count, 32),
    FIELD(weft_async_error, message, 40),
    END(weft_async_error, 272),

    FIELD(weft_ce_config, size, 0),
    FIELD(weft_ce_config, max_tokens, 8),
    FIELD(weft_ce_config, hidden, 16),
    FIELD(weft_ce_config, vocab, 24),
    FIELD(weft_ce_config, vocab_start, 32),
    FIELD(weft_ce_config, vocab_local, 40),
    FIELD(weft_ce_config, ignore_index, 48),
    FIELD(weft_ce_config, workspace_budget, 56),
    FIELD(weft_ce_config, workspace, 64),
    FIELD(weft_ce_config, workspace_bytes, 72),
    FIELD(weft_ce_config, softcap, 80),
    FIELD(weft_ce_config, wants, 84),
    FIELD(weft_ce_config, dtype, 88),
    FIELD(weft_ce_config, w_dtype, 92),
    FIELD(weft_ce_config, target_dtype, 96),
    FIELD(weft_ce_config, dx_dtype, 100),
    FIELD(weft_ce_config, dw_dtype, 104),
    FIELD(weft_ce_config, dx_mode, 108),
    FIELD(weft_ce_config, deterministic, 112),
    FIELD(weft_ce_config, max_sms, 116),
    FIELD(weft_ce_config, threads, 120),
    FIELD(weft_ce_config, x_sharded, 124),
    FIELD(weft_ce_config, bias, 128),
    FIELD(weft_ce_config, device, 132),
    END(weft_ce_config, 136),

    FIELD(weft_ce_machine, size, 0),
    FIELD(weft_ce_machine, arch, 8),
    FIELD(weft_ce_machine, units, 16),
    FIELD(weft_ce_machine, ranks, 24),
    FIELD(weft_ce_machine, hosts, 32),
    END(weft_ce_machine, 40),

    FIELD(weft_ce_plan_info, size, 0),
    FIELD(weft_ce_plan_info, local_bytes, 8),
    FIELD(weft_ce_plan_info, symmetric_bytes, 16),
    FIELD(weft_ce_plan_info, least_bytes, 24),
    FIELD(weft_ce_plan_info, token_chunk, 32),
    FIELD(weft_ce_plan_info, waves, 40),
    FIELD(weft_ce_plan_info, wave_rows, 48),
    FIELD(weft_ce_plan_info, step_gemms, 56),
    FIELD(weft_ce_plan_info, units, 64),
    FIELD(weft_ce_plan_info, forward_ms, 72),
    FIELD(weft_ce_plan_info, backward_ms, 80),
    FIELD(weft_ce_plan_info, step_ms, 88),
    FIELD(weft_ce_plan_info, text, 96),
    END(weft_ce_plan_info, 352),

    FIELD(weft_ce_args, size, 0),
    FIELD(weft_ce_args, tokens, 8),
    FIELD(weft_ce_args, x, 16),
    FIELD(weft_ce_args, x_stride, 24),
    FIELD(weft_ce_args, w, 32),
    FIELD(weft_ce_args, w_stride, 40),
    FIELD(weft_ce_args, target, 48),
    FIELD(weft_ce_args, temperature, 56),
    FIELD(weft_ce_args, dw_accumulate, 60),
    FIELD(weft_ce_args, temperature_ptr, 64),
    FIELD(weft_ce_args, g_nll, 72),
    FIELD(weft_ce_args, g_entropy, 80),
    FIELD(weft_ce_args, g_lse, 88),
    FIELD(weft_ce_args, stats, 96),
    FIELD(weft_ce_args, nll, 104),
    FIELD(weft_ce_args, lse, 112),
    FIELD(weft_ce_args, entropy, 120),
    FIELD(weft_ce_args, dx, 128),
    FIELD(weft_ce_args, dx_stride, 136),
    FIELD(weft_ce_args, dw, 144),
    FIELD(weft_ce_args, dw_stride, 152),
    END(weft_ce_args, 160),

    FIELD(weft_ep_config, size, 0),
    FIELD(weft_ep_config, tokens_max, 8),
    FIELD(weft_ep_config, hidden, 16),
    FIELD(weft_ep_config, experts, 24),
    FIELD(weft_ep_config, topk, 32),
    FIELD(weft_ep_config, timeout_ms, 40),
    FIELD(weft_ep_config, workspace, 48),
    FIELD(weft_ep_config, workspace_bytes, 56),
    FIELD(weft_ep_config, dtype, 64),
    FIELD(weft_ep_config, layout, 68),
    FIELD(weft_ep_config, alignment, 72),
    FIELD(weft_ep_config, scale_format, 76),
    FIELD(weft_ep_config, scale_order, 80),
    FIELD(weft_ep_config, topk_dtype, 84),
    FIELD(weft_ep_config, masking, 88),
    FIELD(weft_ep_config, zero_copy, 92),
    FIELD(weft_ep_config, max_sms, 96),
    FIELD(weft_ep_config, device, 100),
    FIELD(weft_ep_config, fence, 104),
    FIELD(weft_ep_config, reserved, 108),
    END(weft_ep_config, 112),

    FIELD(weft_ep_machine, size, 0),
    FIELD(weft_ep_machine, arch, 8),
    FIELD(weft_ep_machine, ranks, 16),
    FIELD(weft_ep_machine, hosts, 24),
    FIELD(weft_ep_machine, peer_memory, 32),
    FIELD(weft_ep_machine, reserved, 36),
    END(weft_ep_machine, 40),

    FIELD(weft_ep_plan_info, size, 0),
    FIELD(weft_ep_plan_info, local_bytes, 8),
    FIELD(weft_ep_plan_info, symmetric_bytes, 16),
    FIELD(weft_ep_plan_info, handle_bytes, 24),
    FIELD(weft_ep_plan_info, experts_local, 32),
    FIELD(weft_ep_plan_info, rows_max, 40),
    FIELD(weft_ep_plan_info, scale_stride, 48),
    FIELD(weft_ep_plan_info, recv_bytes, 56),
    FIELD(weft_ep_plan_info, scale_bytes, 64),
    FIELD(weft_ep_plan_info, buffer_bytes, 72),
    FIELD(weft_ep_plan_info, text, 80),
    END(weft_ep_plan_info, 336),

    FIELD(weft_ep_dispatch_args, size, 0),
    FIELD(weft_ep_dispatch_args, tokens, 8),
    FIELD(weft_ep_dispatch_args, x, 16),
    FIELD(weft_ep_dispatch_args, x_stride, 24),
    FIELD(weft_ep_dispatch_args, topk_idx, 32),
    FIELD(weft_ep_dispatch_args, topk_weights, 40),
    FIELD(weft_ep_dispatch_args, reuse, 48),
    FIELD(weft_ep_dispatch_args, reserved, 52),
    FIELD(weft_ep_dispatch_args, recv_x, 56),
    FIELD(weft_ep_dispatch_args, recv_scales, 64),
    FIELD(weft_ep_dispatch_args, recv_weights, 72),
    FIELD(weft_ep_dispatch_args, counts, 80),
    FIELD(weft_ep_dispatch_args, offsets, 88),
    FIELD(weft_ep_dispatch_args, source_counts, 96),
    END(weft_ep_dispatch_args, 104),

    FIELD(weft_ep_combine_args, size, 0),
    FIELD(weft_ep_combine_args, y, 8),
    FIELD(weft_ep_combine_args, row_gradient, 16),
    FIELD(weft_ep_combine_args, topk_weights, 24),
    FIELD(weft_ep_combine_args, out, 32),
    FIELD(weft_ep_combine_args, out_stride, 40),
    FIELD(weft_ep_combine_args, weight_gradient, 48),
    END(weft_ep_combine_args, 56),

    FIELD(weft_ep_stats, size, 0),
    FIELD(weft_ep_stats, dispatches, 8),
    FIELD(weft_ep_stats, combines, 16),
    FIELD(weft_ep_stats, expert_rows, 24),
    FIELD(weft_ep_stats, wait_ms, 32),
    END(weft_ep_stats, 40),
};

typedef struct constant {
  const char *name;
  int expected, value;
} constant;

#define CONSTANT(name, expected)                                                                   \
  { #name, expected, name }

static const constant constants[] = {
    CONSTANT(WEFT_OK, 0),
    CONSTANT(WEFT_ERR_ARGUMENT, 1),
    CONSTANT(WEFT_ERR_UNSUPPORTED, 2),
    CONSTANT(WEFT_ERR_MEMORY, 3),
    CONSTANT(WEFT_ERR_WORKSPACE, 4),
    CONSTANT(WEFT_ERR_MISMATCH, 5),
    CONSTANT(WEFT_ERR_TARGET, 6),
    CONSTANT(WEFT_ERR_TIMEOUT, 7),
    CONSTANT(WEFT_ERR_ABORTED, 8),
    CONSTANT(WEFT_ERR_PEER, 9),
    CONSTANT(WEFT_ERR_BUSY, 10),
    CONSTANT(WEFT_ERR_SYSTEM, 11),
    CONSTANT(WEFT_LOG_ERROR, 1),
    CONSTANT(WEFT_LOG_WARNING, 2),
    CONSTANT(WEFT_LOG_INFO, 3),
    CONSTANT(WEFT_LOG_DEBUG, 4),
    CONSTANT(WEFT_DEVICE_AUTO, 0),
    CONSTANT(WEFT_DEVICE_CPU, 1),
    CONSTANT(WEFT_DEVICE_CUDA, 2),
    CONSTANT(WEFT_DTYPE_DEFAULT, 0),
    CONSTANT(WEFT_F32, 1),
    CONSTANT(WEFT_BF16, 2),
    CONSTANT(WEFT_F16, 3),
    CONSTANT(WEFT_I32, 4),
    CONSTANT(WEFT_I64, 5),
    CONSTANT(WEFT_E4M3, 6),
    CONSTANT(WEFT_DX_ALL_REDUCE, 0),
    CONSTANT(WEFT_DX_REDUCE_SCATTER, 1),
    CONSTANT(WEFT_DX_NONE, 2),
    CONSTANT(WEFT_CE_ENTROPY, 1),
    CONSTANT(WEFT_CE_DX, 2),
    CONSTANT(WEFT_CE_DW, 4),
    CONSTANT(WEFT_CE_STEP, 8),
    CONSTANT(WEFT_EP_SLAB, 0),
    CONSTANT(WEFT_EP_PACKED, 1),
    CONSTANT(WEFT_EP_SCALE_F32, 0),
    CONSTANT(WEFT_EP_SCALE_POW2, 1),
    CONSTANT(WEFT_EP_SCALE_UE8M0, 2),
    CONSTANT(WEFT_EP_ROW_MAJOR, 0),
    CONSTANT(WEFT_EP_COLUMN_MAJOR, 1),
    CONSTANT(WEFT_EP_FENCE_ON, 0),
    CONSTANT(WEFT_EP_FENCE_OFF, 1),
    CONSTANT(WEFT_EP_FENCE_WIDE, 2),
};

/* Each struct starts with its size, and its _INIT macro puts it there. */
#define CHECK_INIT(type, macro)                                                                    \
  do {                                                                                             \
    const type value = macro;                                                                      \
    if (value.size != sizeof(type)) {                                                              \
      printf("%s: size field is %zu, expected %zu\n", #macro, value.size, sizeof(type));           \
      wrong++;                                                                                     \
    }                                                                                              \
  } while (0)

static int check_inits(void) {
  int wrong = 0;
  CHECK_INIT(weft_system_info, WEFT_SYSTEM_INFO_INIT);
  CHECK_INIT(weft_world_config, WEFT_WORLD_CONFIG_INIT);
  CHECK_INIT(weft_exchange, WEFT_EXCHANGE_INIT);
  CHECK_INIT(weft_comm_info, WEFT_COMM_INFO_INIT);
  CHECK_INIT(weft_async_error, WEFT_ASYNC_ERROR_INIT);
  CHECK_INIT(weft_ce_config, WEFT_CE_CONFIG_INIT);
  CHECK_INIT(weft_ce_machine, WEFT_CE_MACHINE_INIT);
  CHECK_INIT(weft_ce_plan_info, WEFT_CE_PLAN_INFO_INIT);
  CHECK_INIT(weft_ce_args, WEFT_CE_ARGS_INIT);
  CHECK_INIT(weft_ep_config, WEFT_EP_CONFIG_INIT);
  CHECK_INIT(weft_ep_machine, WEFT_EP_MACHINE_INIT);
  CHECK_INIT(weft_ep_plan_info, WEFT_EP_PLAN_INFO_INIT);
  CHECK_INIT(weft_ep_dispatch_args, WEFT_EP_DISPATCH_ARGS_INIT);
  CHECK_INIT(weft_ep_combine_args, WEFT_EP_COMBINE_ARGS_INIT);
  CHECK_INIT(weft_ep_stats, WEFT_EP_STATS_INIT);

  const weft_ce_config config = WEFT_CE_CONFIG_INIT;
  wrong += config.ignore_index != -100 || config.dtype != WEFT_F32 ||
           config.target_dtype != WEFT_I64 || config.deterministic != 1;
  const weft_ce_args args = WEFT_CE_ARGS_INIT;
  wrong += args.temperature != 1.0f;
  const weft_ep_config ep = WEFT_EP_CONFIG_INIT;
  wrong += ep.topk != 1 || ep.dtype != WEFT_BF16 || ep.alignment != 1 || ep.topk_dtype != WEFT_I64;
  const weft_ep_machine machine = WEFT_EP_MACHINE_INIT;
  wrong += machine.ranks != 1 || machine.hosts != 1 || machine.peer_memory != 1;
  const weft_world_config world = WEFT_WORLD_CONFIG_INIT;
  wrong += world.ranks != 1 || world.hosts != 1;
  return wrong;
}

int main(void) {
  if (sizeof(void *) != 8 || sizeof(long) != 8) {
    printf("skipped: the numbers are those of LP64\n");
    return 77;
  }
  int wrong = check_inits();
  size_t end = 0; /* of the field before */
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    const layout *l = &layouts[i];
    const char *field = l->field != NULL ? l->field : "(end)";
    if (l->offset != l->expected) {
      printf("%s.%s is at %zu, expected %zu\n", l->type, field, l->offset, l->expected);
      wrong++;
    }
    if (l->offset != end) {
      printf("%s.%s: the bytes from %zu to %zu are in no field of this list\n", l->type, field, end,
             l->offset);
      wrong++;
    }
    end = l->field != NULL ? l->offset + l->bytes : 0;
  }
  for (size_t i = 0; i < sizeof constants / sizeof *constants; i++) {
    if (constants[i].value == constants[i].expected) continue;
    printf("%s is %d, expected %d\n", constants[i].name, constants[i].value, constants[i].expected);
    wrong++;
  }
  printf("%zu fields and sizes, %zu constants, %d wrong\n", sizeof layouts / sizeof *layouts,
         sizeof constants / sizeof *constants, wrong);
  return wrong != 0;
}
