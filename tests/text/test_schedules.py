import pytest

from open_nvib.store.settings import LossSettings, Schedule


def test_linear_is_constant_then_a_ramp_then_constant():
    schedule = Schedule(start=1.0, end=0.2, from_step=100, to_step=300)
    values = {0: 1.0, 100: 1.0, 150: 0.8, 200: 0.6, 300: 0.2, 10_000: 0.2}
    assert {step: schedule.at(step) for step in values} == pytest.approx(values)


def test_cyclical_repeats_a_ramp_over_half_of_each_period():
    schedule = Schedule(start=0.0, end=4.0, kind="cyclical", from_step=10, period=8)
    one_cycle = [0.0, 1.0, 2.0, 3.0, 4.0, 4.0, 4.0, 4.0]
    assert [schedule.at(step) for step in range(10)] == [0.0] * 10
    assert [schedule.at(step) for step in range(10, 34)] == pytest.approx(3 * one_cycle)


def test_a_number_is_a_constant_schedule():
    loss = LossSettings(lambda_g=2, delta=Schedule(start=1.0, end=3.0, to_step=4))
    assert [loss.at(step).lambda_g for step in (0, 7)] == [2.0, 2.0]
    assert loss.at_end().lambda_g == 2.0
    assert [loss.at(step).delta for step in (0, 1, 9)] == pytest.approx([1.0, 1.5, 3.0])
    assert loss.at_end().delta == 3.0
    assert loss.at(1).keep_share is None


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"from_step": 5, "to_step": 5}, "to_step = 5"),
        ({"from_step": 9, "to_step": 5}, "from_step = 9"),
        ({"kind": "cyclical", "period": 1}, "period = 1"),
    ],
)
def test_schedule_without_room_for_a_ramp_is_refused(options, what):
    with pytest.raises(ValueError, match=what):
        Schedule(start=0.0, end=1.0, **options)
