// How the host launches a kernel. A tile of pipeline/kernels/tiles.py sets the values, and the kernel asserts them.
#pragma once

// SHARED_BYTES: the dynamic shared memory of a block. SHARED_LIMIT: the most that a block can use on the target
// architecture, a macro that pipeline/kernels/compile.py defines from the table in tiles.py.
template <int THREADS_, int SHARED_BYTES_>
struct Launch {
    static constexpr int THREADS = THREADS_, SHARED_BYTES = SHARED_BYTES_;
    static_assert(SHARED_BYTES <= SHARED_LIMIT, "shared memory of a block on this architecture");
};
