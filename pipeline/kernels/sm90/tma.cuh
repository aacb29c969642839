// The copy engine (TMA), which copies boxes of a tensor to shared memory and swizzles them, without using registers.
#pragma once
#include "common/types.cuh"

struct __align__(64) TensorMap {
    uint64 opaque[16];
};

// Load a box of a rank-2 or rank-3 tensor, with the innermost coordinate first. `barrier` counts its bytes. Elements
// outside the tensor arrive as zeros.
__device__ __forceinline__ void load_box(uint32 to, const TensorMap& map, uint32 barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}
__device__ __forceinline__ void load_box(uint32 to, const TensorMap& map, uint32 barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
        ::"r"(to), "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}

// Load one box to every block of the cluster in the mask `blocks`, at the same addresses. The barrier of each counts
// it.
__device__ __forceinline__ void load_box_to_all(uint32 to, const TensorMap& map, uint32 barrier, uint16 blocks, int x,
                                                int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%4, %5}], [%2], %3;" ::"r"(to), "l"(&map), "r"(barrier), "h"(blocks), "r"(x), "r"(y)
        : "memory");
}

// Store a box from shared memory, in the layout of load_box. Elements outside the tensor are not stored.
__device__ __forceinline__ void store_box(const TensorMap& map, uint32 from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&map), "r"(from),
                 "r"(x), "r"(y)
                 : "memory");
}
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Wait until the shared memory of this thread's boxes may be written again.
__device__ __forceinline__ void wait_stored() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// Make this thread's writes to shared memory visible to the copy engine. Every thread that writes a part of a box must
// call this before the box is stored.
__device__ __forceinline__ void publish_to_copy_engine() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
