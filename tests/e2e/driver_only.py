"""pyinfra tests.../driver_only.py: what deploy.py does up to the driver, so that tests of drivers need build no engine."""

from tasks import driver, preflight, site

plan = preflight.plan()

if plan:
    site.site(plan)
    driver.driver(plan)
