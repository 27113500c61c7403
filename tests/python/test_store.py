"""The store of the package: values, leases, updates, commits and figures."""

import array
import ctypes
import os
import tempfile
import unittest

import terrace
from support import MIB, fill, make_store, state_of, tensors, train


class Values(unittest.TestCase):
    def setUp(self):
        self.store = make_store()
        self.addCleanup(self.store.close)

    def test_a_fill_from_any_source_gives_the_same_values(self):
        self.store.fill_with(fill)
        wanted = state_of(self.store)
        arrays = {tensor.name: self.store.read_values(tensor.name) for tensor in self.store.tensors}
        with make_store() as other:
            raw = {name: (values.tobytes(), "fp32") for name, values in arrays.items()}
            address = arrays["weight"].buffer_info()[0]
            other.fill_arrays({0: (address, "fp32"), "bias": arrays["bias"], "kept": raw["kept"]})
            self.assertEqual(state_of(other), wanted)
        with tempfile.TemporaryDirectory() as folder, make_store() as other:
            path = os.path.join(folder, "values")
            with open(path, "wb") as file:
                file.write(b"before" + b"".join(values.tobytes() for values in arrays.values()))
            offsets = {"weight": 6, "bias": 6 + 48 * 32 * 4, "kept": 6 + 48 * 32 * 4 + 32 * 4}
            other.fill_files([(name, path, offset, "fp32") for name, offset in offsets.items()])
            self.assertEqual(state_of(other), wanted)

    def test_values_are_read_and_written_in_part(self):
        self.store.fill_with(fill)
        self.store.write_values("bias", [1.0, 2.0, 3.0], first=4)
        self.assertEqual(self.store.read_values("bias", first=4, count=3).tolist(), [1.0, 2.0, 3.0])
        self.assertEqual(self.store.read_values("bias", "master", 4, 3).tolist(), [1.0, 2.0, 3.0])
        self.store.write_values("bias", array.array("f", [0.5]), "second_moment", 31)
        out = array.array("f", bytes(4 * 32))
        self.assertIs(self.store.read_values("bias", "second_moment", out=out), out)
        self.assertEqual(out.tolist(), [0.0] * 31 + [0.5])
        address, count = out.buffer_info()
        self.store.read_values("bias", count=count, out=address)
        self.assertEqual(out, self.store.read_values("bias"))

    def test_buffers_of_another_size_or_type_are_refused_and_change_nothing(self):
        self.store.fill_with(fill)
        wanted = state_of(self.store)
        short, doubles = array.array("f", [0.0]), array.array("d", bytes(8 * 32))
        long = array.array("f", bytes(132))
        for call in (
            lambda: self.store.read_values("bias", out=short),
            lambda: self.store.read_values("bias", out=bytes(4 * 32)),
            lambda: self.store.read_values("bias", out=long),
            lambda: self.store.fill_arrays({"bias": long}),
            lambda: self.store.read_values("bias", out=doubles),
            lambda: self.store.write_values("bias", doubles),
            lambda: self.store.write_values("bias", memoryview(bytes(256)).cast("f")[::2]),
            lambda: self.store.write_values("bias", object()),
            lambda: self.store.write_values("bais", [0.0]),
            lambda: self.store.read_values("bias", "third_moment"),
            lambda: self.store.fill_arrays({"bias": short}),
        ):
            with self.assertRaises(terrace.ConfigError) as caught:
                call()
            self.assertTrue(all((caught.exception.what, caught.exception.subject, caught.exception.advice)))
        self.assertEqual(state_of(self.store), wanted)

    def test_what_a_fill_raises_comes_out_and_another_fill_heals(self):
        def broken(tensor, first, values):
            raise ZeroDivisionError("of this test")

        with self.assertRaisesRegex(ZeroDivisionError, "of this test") as caught:
            self.store.fill_with(broken)
        self.assertIsInstance(caught.exception.__cause__, terrace.CancelledError)
        with self.assertRaises(terrace.MisuseError):
            self.store.begin_step()
        self.store.fill_with(fill)
        self.store.begin_step()
        self.store.abandon_step()


class Steps(unittest.TestCase):
    def setUp(self):
        self.store = make_store()
        self.addCleanup(self.store.close)
        self.store.fill_with(fill)

    def test_an_update_is_that_of_adamw(self):
        before = self.store.read_values("bias").tolist()
        result = train(self.store, 1, lambda name, at: 2.0, terrace.Optimizer(lr=0.5, eps=0.0, weight_decay=0.5))
        self.assertEqual((result.applied, result.partly_applied), (True, False))
        self.assertEqual(result.gradient_norm, (4.0 * (48 * 32 + 32)) ** 0.5)
        for old, new in zip(before, self.store.read_values("bias")):
            self.assertAlmostEqual(new, old * 0.75 - 0.5, 6)  # the first step of Adam is lr
        moments = self.store.read_values("bias", "first_moment")
        self.assertAlmostEqual(moments[0], 0.2, 6)

    def test_values_are_meant_as_they_are(self):
        train(self.store, 1, lambda name, at: 2.0, terrace.Optimizer(betas=(0.0, 0.0)))
        self.assertEqual(self.store.read_values("bias", "first_moment").tolist(), [2.0] * 32)
        self.assertEqual(self.store.read_values("bias", "second_moment").tolist(), [4.0] * 32)

    def test_sgd_has_its_momentum(self):
        group = terrace.Optimizer("sgd", lr=1.0, momentum=0.5, dampening=0.25)
        nesterov = terrace.Optimizer("sgd", lr=1.0, momentum=0.5, nesterov=True)
        for optimizer, moves in ((group, (2.0, 2.0 * 0.5 + 2.0 * 0.75)), (nesterov, (2.0 + 1.0, 2.0 + 0.5 * 3.0))):
            with make_store(optimizer="sgd", sgd_momentum=True) as store:
                store.fill_with(lambda tensor, first, values: None)
                store.write_values("bias", [0.0] * 32)
                train(store, 1, lambda name, at: 2.0, optimizer)
                train(store, 2, lambda name, at: 2.0, optimizer)
                self.assertEqual(store.read_values("bias").tolist(), [-sum(moves)] * 32)

    def test_groups_have_their_own_settings(self):
        described = [terrace.Tensor("weight", (16,)), terrace.Tensor("bias", (16,), group=1)]
        with make_store(described, optimizer="sgd") as store:
            store.fill_arrays({name: bytes(64) for name in ("weight", "bias")})
            groups = [terrace.Optimizer("sgd", lr=rate) for rate in (0.5, 0.25)]
            train(store, 1, lambda name, at: 1.0, groups)
            self.assertEqual((store.read_values("weight")[0], store.read_values("bias")[0]), (-0.5, -0.25))

    def test_a_gradient_that_is_infinite_changes_nothing(self):
        before = state_of(self.store)
        self.assertFalse(train(self.store, 1, lambda name, at: float("inf")).applied)
        self.assertEqual(state_of(self.store), before)

    def test_the_loss_scale_divides_and_clipping_bounds(self):
        with make_store() as other:
            other.fill_with(fill)
            for store, factor, scale in ((self.store, 1.0, 1.0), (other, 1024.0, 1024.0)):
                store.begin_step()
                with store.lease("b", ["weight", "bias"], "backward"):
                    for name in ("weight", "bias"):
                        view = memoryview(store.gradient(name)).cast("B").cast("f")
                        for at in range(len(view)):
                            view[at] = factor * 0.25
                store.end_micro_batch()
                norm = store.update([terrace.Optimizer()], 1, clip_norm=0.5, loss_scale=scale).gradient_norm
                self.assertEqual(norm, (0.0625 * (48 * 32 + 32)) ** 0.5)
            self.assertEqual(state_of(other), state_of(self.store))

    def test_leases_nest_and_views_live_in_them_alone(self):
        self.store.begin_step()
        with self.store.lease("outer", ["weight", "bias"]) as (weight, bias):
            self.assertEqual(memoryview(weight).shape, (48, 32))
            self.assertTrue(memoryview(bias).readonly)
            with self.store.lease("inner", ["bias"], "backward"):
                self.assertFalse(self.store.gradient_accumulates("bias"))
                self.assertFalse(memoryview(self.store.gradient("bias")).readonly)
            with self.assertRaises(terrace.MisuseError):
                self.store.gradient("bias")
            self.store.parameter("weight")
        with self.assertRaises(terrace.MisuseError):
            self.store.parameter("weight")
        self.store.abandon_step()

    def test_addresses_never_change(self):
        addresses = [self.store.parameter_address(tensor) for tensor in range(3)]
        train(self.store, 1)
        self.assertEqual([self.store.parameter_address(tensor.name) for tensor in self.store.tensors], addresses)
        self.store.begin_evaluation()
        with self.store.lease("look", ["bias"], "inference"):
            seen = ctypes.string_at(self.store.parameter_address("bias"), 32 * 4)
        self.store.end_evaluation()
        self.assertEqual(seen, self.store.read_values("bias").tobytes())
        self.assertNotEqual(self.store.gradient_address("bias"), self.store.parameter_address("bias"))

    def test_a_step_is_abandoned_with_the_leases_that_are_open(self):
        before = state_of(self.store)
        self.store.begin_step()
        ids = self.store.ids(["weight"])
        self.store.open_lease(b"one", 0, ids, 1)
        self.store.open_lease(b"two", 0, ids, 1)
        self.store.abandon_step()
        self.assertEqual(state_of(self.store), before)
        train(self.store, 1)

    def test_gradients_are_handed_over_and_unused_tensors_skipped(self):
        with make_store(gradients="handed_over", unused_gradients="skip") as store:
            store.fill_with(fill)
            kept = state_of(store)
            store.begin_step()
            store.hand_over("bias", array.array("f", [1.0] * 32))
            for wrong in (array.array("f", [1.0]), array.array("d", [1.0] * 32)):
                with self.assertRaises(terrace.ConfigError):
                    store.hand_over("bias", wrong)
            store.end_micro_batch()
            store.update(terrace.Optimizer(), 1)
            self.assertEqual(store.tensor_steps, [0, 1, 0])
            self.assertEqual(store.read_values("weight").tobytes(), kept["weight", "parameter"])
            self.assertNotEqual(store.read_values("bias").tobytes(), kept["bias", "parameter"])
            store.set_tensor_steps([3, 4, 0])
            self.assertEqual(store.tensor_steps, [3, 4, 0])

    def test_tensors_of_the_caller_are_updated_where_they_lie(self):
        memory = array.array("f", [0.5] * 4096)
        described = [terrace.Tensor("own", (4096,), home="caller", address=memory.buffer_info()[0])]
        with terrace.Store(described, host_bytes=8 * MIB, gradients="handed_over") as store:
            store.fill_arrays({"own": memory})
            store.begin_step()
            store.hand_over("own", array.array("f", [1.0] * 4096))
            store.end_micro_batch()
            store.update(terrace.Optimizer(lr=0.25, eps=0.0), 1)
            self.assertEqual(memory.tolist(), [0.25] * 4096)
            moved = array.array("f", memory)
            store.move_tensor("own", moved.buffer_info()[0])
            self.assertEqual(store.read_values("own"), memory)

    def test_borrowed_gradients_live_until_the_update(self):
        memory = array.array("f", [0.5] * 4096)
        described = [terrace.Tensor("own", (4096,), home="caller", address=memory.buffer_info()[0])]
        options = {"host_bytes": 8 * MIB, "gradients": "borrowed"}
        with terrace.Store(described, **options) as store:
            store.fill_arrays({"own": memory})
            for end in (store.abandon_step, lambda: store.update(terrace.Optimizer(lr=0.25, eps=0.0), 1)):
                gradient = array.array("f", [1.0] * 4096)
                store.begin_step()
                store.hand_over("own", gradient)
                with self.assertRaises(BufferError):  # an array that is exported cannot be resized
                    gradient.append(0.0)
                if end != store.abandon_step:
                    store.end_micro_batch()
                end()
                gradient.append(0.0)
            self.assertEqual(memory.tolist(), [0.25] * 4096)

    def test_an_update_runs_beside_the_next_step(self):
        self.store.update_when = "next_forward"
        self.assertEqual(self.store.update_when, "next_forward")
        train(self.store, 1)
        self.store.finish_update()
        self.assertFalse(self.store.update_pending)
        with make_store() as other:
            other.fill_with(fill)
            train(other, 1)
            self.assertEqual(state_of(self.store), state_of(other))

    def test_counters_count(self):
        train(self.store, 1)
        found = self.store.step_counters()
        self.assertEqual(set(found), set(self.store.counters()))
        self.assertGreater(found["h2d"], 0)
        self.store.begin_step()
        self.assertEqual(self.store.step_counters()["d2h"], 0)
        self.store.abandon_step()


class Plans(unittest.TestCase):
    def test_a_plan_says_what_the_store_takes(self):
        units = [terrace.Use("layer", ["weight", "bias"])]
        planned = terrace.plan(tensors(), terrace.SimulatedDevice(MIB), units, host_bytes=8 * MIB)
        self.assertTrue(planned.fits)
        self.assertEqual((planned.parameter_count, planned.trainable_count), (48 * 32 + 40, 48 * 32 + 32))
        with terrace.Store(tensors(), terrace.SimulatedDevice(MIB), units, host_bytes=8 * MIB) as store:
            self.assertEqual(store.plan, planned)

    def test_uses_are_announced_with_all_that_they_say(self):
        uses = [
            terrace.Use(f"{kind}{part}", ["weight"], kind, part)
            for part in range(2)
            for kind in ("forward", "backward")
        ]
        device, options = terrace.SimulatedDevice(MIB), {"host_bytes": 8 * MIB, "accumulation_steps": 2}
        self.assertTrue(terrace.plan(tensors(), device, uses, **options).fits)
        for wrong in ({"encloses": 4}, {"micro_batch": 2}, {"kind": "sideways"}, {"tensors": ["wait"]}):
            with self.subTest(str(wrong)), self.assertRaises((terrace.ConfigError, terrace.MisuseError)):
                terrace.plan(tensors(), device, [uses[0]._replace(**wrong), *uses[1:]], **options)

    def test_a_gradient_arises_in_as_many_leases_as_were_said(self):
        described = [terrace.Tensor("tied", (16,), backward_uses=2)]
        with make_store(described, optimizer="sgd") as store:
            store.fill_arrays({"tied": bytes(64)})
            store.begin_step()
            for key, accumulates in (("head", False), ("table", True)):
                with store.lease(key, ["tied"], "backward"):
                    self.assertEqual(store.gradient_accumulates("tied"), accumulates)
                    view = memoryview(store.gradient("tied")).cast("B").cast("f")
                    for at in range(16):
                        view[at] = 0.5 + (view[at] if accumulates else 0.0)
            store.end_micro_batch()
            store.update(terrace.Optimizer("sgd", lr=1.0), 1)
            self.assertEqual(store.read_values("tied").tolist(), [-1.0] * 16)

    def test_the_least_budgets_do(self):
        with self.assertRaises(terrace.CapacityError) as caught:
            terrace.Store(tensors(), terrace.SimulatedDevice(1), host_bytes=1)
        error = caught.exception
        self.assertFalse(error.plan.fits)
        self.assertEqual(error.least_bytes, error.least_device_bytes)
        self.assertEqual(
            (error.plan.device_least_bytes, error.plan.host_least_bytes),
            (error.least_device_bytes, error.least_host_bytes),
        )
        with make_store(device_bytes=error.least_device_bytes, host_bytes=error.least_host_bytes) as store:
            store.fill_with(fill)
            train(store, 1)
        with self.assertRaises(terrace.CapacityError):
            make_store(device_bytes=error.least_device_bytes, host_bytes=error.least_host_bytes - 1)

    def test_leases_that_find_no_room_say_what_would_do_and_change_nothing(self):
        described = [terrace.Tensor(f"t{at}", (64, 64)) for at in range(4)]
        for states in ("cpu", "device"):
            for gradients in ("leased", "handed_over"):
                options = dict(chunk_elements=4096, states=states, gradients=gradients)
                with self.assertRaises(terrace.CapacityError) as caught:
                    make_store(described, 1, **options)
                least = caught.exception.least_device_bytes
                with make_store(described, least, **options) as store:
                    store.fill_with(fill)
                    before = state_of(store)
                    store.begin_step()
                    kind = "backward" if gradients == "leased" else "forward"
                    with self.assertRaises(terrace.CapacityError) as caught, store.lease("t0", [0], kind):
                        with store.lease("others", [1, 2, 3], kind):
                            pass
                    enough = caught.exception.least_device_bytes
                    self.assertIn(str(enough), str(caught.exception))
                    with store.lease("t1", [1], kind):
                        pass
                    store.abandon_step()
                    self.assertEqual(state_of(store), before)
                for budget, is_enough in ((enough, True), (enough - 1, False)):
                    with make_store(described, budget, **options) as store:
                        store.fill_with(fill)
                        store.begin_step()
                        if is_enough:
                            with store.lease("t0", [0], kind), store.lease("others", [1, 2, 3], kind):
                                pass
                        else:
                            with self.assertRaises(terrace.CapacityError), store.lease("t0", [0], kind):
                                with store.lease("others", [1, 2, 3], kind):
                                    pass
                        store.abandon_step()

    def test_the_host_budget_moves_between_its_least_and_more(self):
        with tempfile.TemporaryDirectory() as folder:
            with make_store(states="nvme", nvme_paths=folder) as store:
                store.fill_with(fill)
                size, least = store.host_budget
                self.assertEqual(size, 8 * MIB)
                store.set_host_budget(least)
                self.assertEqual(store.host_budget[0], least)
                with self.assertRaises(terrace.CapacityError):
                    store.set_host_budget(1)
                train(store, 1)

    def test_the_log_says_lines_with_levels(self):
        lines = []
        with tempfile.TemporaryDirectory() as folder:
            options = {"parameters": "nvme", "states": "nvme", "nvme_paths": [folder], "durable": True}
            with make_store(**options) as store:
                store.fill_with(fill)
                store.begin_commit("old")
                store.finish_commit()
            with make_store(**options, discard_commits=True, log=lambda *line: lines.append(line)):
                pass
        self.assertEqual([level for level, _ in lines], ["info", "info"])
        self.assertRegex(lines[0][1], "^removed .* that an earlier run left in ")
        self.assertRegex(lines[1][1], "^the state that was in .* is removed")

    def test_work_memory_is_there_where_it_was_asked_for(self):
        with make_store(device_bytes=8 * MIB, work_bytes=MIB) as store:
            address, size = store.work_memory
            self.assertEqual((address % (2 * MIB), size), (0, MIB))
            self.assertIsNone(store.compute_stream)


class Commits(unittest.TestCase):
    def test_a_store_goes_on_from_its_commit(self):
        with tempfile.TemporaryDirectory() as folder:
            options = {"parameters": "nvme", "states": "nvme", "nvme_paths": [folder], "durable": True}
            with make_store(**options) as store:
                self.assertEqual((store.last_commit, store.why_no_commits, store.taken_up_text), (0, "", ""))
                store.fill_with(fill)
                train(store, 1)
                wanted = state_of(store)
                store.begin_commit('{"step": 1}')
                self.assertEqual(store.finish_commit(), store.last_commit)
                self.assertFalse(store.commit_in_progress)
                train(store, 2)
                after = state_of(store)
            with make_store(**options, resume=True) as store:
                self.assertEqual(store.taken_up_text, '{"step": 1}')
                self.assertEqual(state_of(store), wanted)
                train(store, 2)
                self.assertEqual(state_of(store), after)
                self.assertTrue(store.has_whole_state)
                store.keep_tier(False)
            with self.assertRaises(terrace.Error):
                make_store(**options, resume=True)

    def test_a_store_without_commits_says_why(self):
        with make_store() as store:
            self.assertNotEqual(store.why_no_commits, "")
            with self.assertRaises(terrace.Error):
                store.begin_commit("text")


if __name__ == "__main__":
    unittest.main()
